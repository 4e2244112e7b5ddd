# Sourced by the other scripts: makes sure that the checkout's virtual environment stands, and sets `checkout` to the
# checkout's folder and `python` to that environment's interpreter. Needs a Python from 3.11 on with venv; see bootstrap.py.

checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

newest_python() {
  local candidate
  for candidate in python3.14 python3.13 python3.12 python3.11 python3 python; do
    # A name on PATH may be a shim that leads nowhere, so it must run.
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  echo "no Python 3.11 or newer found on PATH; install one (Debian and Ubuntu: apt-get install python3 python3-venv)" >&2
  return 1
}

# Processes are started by the hundred, and would compile the checkout each time.
unset PYTHONDONTWRITEBYTECODE

base=$(newest_python)
python=$("$base" "$checkout/scripts/bootstrap.py")
