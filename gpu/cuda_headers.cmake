# CUDA's headers, which are all that a build needs of CUDA: the driver is loaded when a program starts.
# Looked for in EMBCACHE_CUDA_INCLUDE, then in an installed toolkit, then where deploy/cuda_headers puts
# them. Sets EMBCACHE_HAVE_CUDA and, when there are headers, defines the target embcache_cuda_headers.
# Without them everything builds, for host memory only.
set(EMBCACHE_CUDA_INCLUDE "" CACHE PATH "Folder of cuda.h; empty: look for it")

set(EMBCACHE_HAVE_CUDA OFF)
set(cuda_include ${EMBCACHE_CUDA_INCLUDE})
if(cuda_include)
  if(NOT EXISTS ${cuda_include}/cuda.h)
    message(FATAL_ERROR "EMBCACHE_CUDA_INCLUDE: there is no ${cuda_include}/cuda.h")
  endif()
else()
  find_package(CUDAToolkit QUIET)
  if(CUDAToolkit_FOUND)
    list(GET CUDAToolkit_INCLUDE_DIRS 0 cuda_include)
  elseif(EXISTS ${PROJECT_SOURCE_DIR}/.build/tools/cuda-12/include/cuda.h)
    set(cuda_include ${PROJECT_SOURCE_DIR}/.build/tools/cuda-12/include)
  endif()
endif()

if(cuda_include)
  set(EMBCACHE_HAVE_CUDA ON)
  file(STRINGS ${cuda_include}/cuda.h cuda_version REGEX "^#define CUDA_VERSION [0-9]+")
  string(REGEX MATCH "[0-9]+" cuda_version "${cuda_version}")
  message(STATUS "CUDA headers ${cuda_version}: ${cuda_include}")
  add_library(embcache_cuda_headers INTERFACE)
  target_include_directories(embcache_cuda_headers SYSTEM INTERFACE ${cuda_include})
  target_compile_definitions(embcache_cuda_headers INTERFACE EMBCACHE_HAVE_CUDA=1)
else()
  message(STATUS "CUDA headers: none (deploy/cuda_headers fetches them); building for host memory only")
endif()
