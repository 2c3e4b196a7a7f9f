#!/usr/bin/env bash
# Renews the locks from pyproject.toml. Needs uv, and a place where torch's CPU build is found (`--torch-backend cpu` on the public internet,
# or UV_FIND_LINKS where the wheel lies on disk). The locks name versions only: where they come from is the installing machine's own setting.
set -euo pipefail
cd "$(dirname "$0")/.."
compile() { ${NO_LINKS:+env -u UV_FIND_LINKS} uv pip compile pyproject.toml --override requirements/overrides.txt --python-version 3.11 --no-header --no-emit-index-url --no-annotate -q "$@"; }
compile --extra cpu --extra planning --extra build --extra otel --extra semantic --extra dev -o requirements/dev.lock
compile --extra cpu --extra planning --extra build --extra otel --extra semantic -c requirements/dev.lock -o requirements/cpu.lock
# The two engines pin different kernels' libraries, so the GPU lock shares with the CPU one only what raylane itself imports.
NO_LINKS=1 compile --extra gpu --extra planning --extra build --extra otel --extra semantic -c <(grep -E '^(ray|pydantic|msgspec|starlette|uvicorn|uvloop|httptools|aiohttp|prometheus-client|typer|rich|transformers|numpy|scipy|optuna|threadpoolctl|plotly|jinja2|highspy)==' requirements/dev.lock) -o requirements/gpu.lock
# Tools that check what is shipped, each set in an environment of its own (infra/tools.sh): their dependencies contradict raylane's and each other's.
tools() { uv pip compile - --python-version 3.11 --no-header --no-emit-index-url --no-annotate --generate-hashes -q -o "requirements/tools-$1.lock"; }
tools checkov <<< "checkov"
tools bom <<< $'cyclonedx-bom\npip-audit\nhadolint-bin\npip'
# ...and the routers that the serving benchmark compares with.
tools routers <<< $'smg\nvllm-router'
# What the images install: an engine without planning and development, and the checksum of every file.
image() { ${NO_LINKS:+env -u UV_FIND_LINKS} uv pip compile pyproject.toml --extra "$1" --extra otel --extra semantic --override requirements/overrides.txt -c "requirements/$1.lock" --python-version 3.11 --python-platform x86_64-manylinux_2_28 --no-header --no-emit-index-url --no-annotate --generate-hashes -q -o "requirements/image-$1.lock"; }
image cpu
NO_LINKS=1 image gpu
uv pip compile - -c requirements/cpu.lock --python-version 3.11 --no-header --no-emit-index-url --no-annotate --generate-hashes -q -o requirements/image-build.lock <<< hatchling
