#!/bin/sh
# Builds the messages and installs the package into a virtual environment, then links the Python sources.
# Arguments: the environment, the number of jobs.
set -eu
prefix=$(cd "$1" && pwd)
source=$(cd "$(dirname "$0")/.." && pwd)
cmake -S "$source" -B "$source/build/cmake" -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTING=OFF \
  -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_INSTALL_PREFIX="$prefix" -DPython3_EXECUTABLE="$prefix/bin/python"
cmake --build "$source/build/cmake" --parallel "$2"
"$prefix/bin/python" "$source/cmake/link_sources.py" "$source" unlink
cmake --install "$source/build/cmake"
"$prefix/bin/python" "$source/cmake/link_sources.py" "$source"
