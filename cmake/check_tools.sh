#!/bin/sh
# Says which of the tools that build the messages are missing, and exits with 1 if any is.
set -u
missing=0
need() { # command, what it is for, Debian package
  command -v "$1" >/dev/null 2>&1 && return
  echo "error: $1 is missing, which $2. Debian/Ubuntu: apt-get install $3" >&2
  missing=1
}
need "${CC:-cc}" "compiles the ROS messages" gcc
need "${CXX:-c++}" "compiles the ROS messages" g++
need cmake "builds the package (3.21 or newer)" cmake
if command -v cmake >/dev/null 2>&1; then
  version=$(cmake --version | sed -n '1s/[^0-9]*\([0-9]*\.[0-9]*\).*/\1/p')
  major=${version%%.*} minor=${version#*.}
  if [ "$major" -lt 3 ] || { [ "$major" -eq 3 ] && [ "$minor" -lt 21 ]; }; then
    echo "error: cmake $version is too old, 3.21 or newer is needed. Debian/Ubuntu: apt-get install cmake" >&2
    missing=1
  fi
fi
if [ "$(uname -s)-$(uname -m)" != Linux-x86_64 ]; then
  echo "error: the ROS 2 wheels exist for x86-64 Linux only, this is $(uname -s) on $(uname -m)." >&2
  echo "  With a ROS 2 installation, use colcon build." >&2
  missing=1
fi
exit $missing
