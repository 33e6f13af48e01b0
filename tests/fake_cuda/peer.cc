// Another process on the fake device, for tests: reads one command a line, answers "<code> <value>"
// to each. Has a current context from the start.
//
//   alloc BYTES -> address    free ADDRESS         export ADDRESS -> handle in hexadecimal
//   open HANDLE -> address    close ADDRESS        range ADDRESS -> base bytes
//   read ADDRESS BYTES -> text (a synchronous copy)     write ADDRESS TEXT (likewise)
//   peek ADDRESS BYTES -> text (as a kernel would)      info -> free total
//   touch ADDRESS (with the CPU)

#include <cuda.h>
#include <string.h>

#include <iostream>
#include <sstream>
#include <string>

#include "tests/fake_cuda/fake_cuda.h"

namespace {

std::string ToHex(const CUipcMemHandle& handle) {
  std::string hex;
  for (char byte : handle.reserved) {
    char digits[3];
    snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned char>(byte));
    hex += digits;
  }
  return hex;
}

CUipcMemHandle FromHex(const std::string& hex) {
  CUipcMemHandle handle = {};
  for (size_t i = 0; i < sizeof(handle) && 2 * i + 1 < hex.size(); ++i) {
    handle.reserved[i] = static_cast<char>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  }
  return handle;
}

int Run(const std::string& line, std::ostream& value) {
  std::istringstream words(line);
  std::string command;
  words >> command;
  if (command == "open") {
    std::string hex;
    words >> hex;
    CUdeviceptr address = 0;
    const CUresult result =
        cuIpcOpenMemHandle(&address, FromHex(hex), CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    value << address;
    return result;
  }
  uint64_t first = 0;
  words >> first;
  if (command == "alloc") {
    CUdeviceptr address = 0;
    const CUresult result = cuMemAlloc(&address, first);
    value << address;
    return result;
  }
  if (command == "free") return cuMemFree(first);
  if (command == "close") return cuIpcCloseMemHandle(first);
  if (command == "export") {
    CUipcMemHandle handle = {};
    const CUresult result = cuIpcGetMemHandle(&handle, first);
    value << ToHex(handle);
    return result;
  }
  if (command == "range") {
    CUdeviceptr base = 0;
    size_t bytes = 0;
    const CUresult result = cuMemGetAddressRange(&base, &bytes, first);
    value << base << ' ' << bytes;
    return result;
  }
  if (command == "info") {
    size_t free_bytes = 0;
    size_t total = 0;
    const CUresult result = cuMemGetInfo(&free_bytes, &total);
    value << free_bytes << ' ' << total;
    return result;
  }
  if (command == "touch") return *reinterpret_cast<volatile char*>(first);
  if (command == "write") {
    std::string text;
    words >> text;
    return cuMemcpyHtoD(first, text.data(), text.size());
  }
  uint64_t bytes = 0;
  words >> bytes;
  std::string text(bytes, '?');
  const int result = command == "peek" ? fakecuda_peek(first, text.data(), bytes)
                                       : cuMemcpyDtoH(text.data(), first, bytes);
  value << text;
  return result;
}

}  // namespace

int main() {
  CUcontext context = nullptr;
  if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
      cuCtxSetCurrent(context) != CUDA_SUCCESS) {
    return 1;
  }
  for (std::string line; std::getline(std::cin, line);) {
    std::ostringstream value;
    const int code = Run(line, value);
    std::cout << code << ' ' << value.str() << std::endl;
  }
  return 0;
}
