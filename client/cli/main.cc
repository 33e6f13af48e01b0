#include <iostream>

#include "client/cli/context.h"

int main(int argc, char** argv) { return embcache::cli::Main(argc, argv, std::cout, std::cerr); }
