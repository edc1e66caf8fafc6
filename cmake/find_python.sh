#!/bin/sh
# Prints a Python from 3.11 to 3.13 that can make virtual environments and has its headers, or says what is missing
# and exits with 1. Candidates: $PYTHON, then python3.11, python3.12, python3.13, python3.
set -u

usable='
import sys
sys.exit(not ((3, 11) <= sys.version_info[:2] <= (3, 13)))'
complete='
import ensurepip, pathlib, sysconfig, venv
raise SystemExit(not (pathlib.Path(sysconfig.get_path("include")) / "Python.h").exists())'

incomplete=""
for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
  command -v "$candidate" >/dev/null 2>&1 || continue
  "$candidate" -c "$usable" >/dev/null 2>&1 || continue
  if "$candidate" -c "$complete" >/dev/null 2>&1; then
    command -v "$candidate"
    exit 0
  fi
  incomplete="$candidate"
done

if [ -n "$incomplete" ]; then
  echo "error: $incomplete has no venv module or no C headers." >&2
  echo "  Debian/Ubuntu: apt-get install python3-venv python3-dev" >&2
else
  echo "error: no Python from 3.11 to 3.13 found (tried: ${PYTHON:-python3.11 python3.12 python3.13 python3})." >&2
  echo "  ROS 2 wheels exist for these versions. Debian/Ubuntu: apt-get install python3 python3-venv python3-dev," >&2
  echo "  or name one: make setup PYTHON=/path/to/python3.12" >&2
fi
exit 1
