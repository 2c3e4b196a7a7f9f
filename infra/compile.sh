#!/usr/bin/env bash
# `make install FAST=1`: compiles what `simulate`, `tune` and `plan` run into build/compiled, in a minute or two; nothing where that is current.
set -euo pipefail
cd "$(dirname "$0")/.."
die() { printf '\033[1;31m[raylane] error:\033[0m %s\n' "$1" >&2; printf '  hint: %s\n' "$2" >&2; exit 1; }

command -v "${CC:-gcc}" > /dev/null || die "there is no C compiler (${CC:-gcc})" "apt-get install gcc"
if ! .venv/bin/python -c 'import mypyc' 2> /dev/null; then
    grep -E '^(mypy|mypy-extensions|pathspec|librt|ast-serialize|typing-extensions)==' requirements/dev.lock > build-lock.new
    trap 'rm -f build-lock.new' EXIT
    .venv/bin/python -m pip --disable-pip-version-check install -q --no-deps -r build-lock.new || die "mypyc cannot be installed" "look at the lines above; then run it again"
fi
.venv/bin/python infra/compile.py
printf '\033[1m[raylane]\033[0m compiled: simulate, tune and plan use build/compiled until its sources change\n'
