#!/usr/bin/env bash
# Writes bills of materials (CycloneDX 1.6, JSON), each validated against CycloneDX's schema, into dist/.
# usage: infra/sbom.sh [cpu] [gpu] [environment]     (none named: cpu and gpu)
#   cpu, gpu: what the image installs, from its lock, with the checksums of all files. Debian's packages are not in it.
#   environment: what .venv has, with licences.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=$(infra/tools.sh bom)
mkdir -p dist
[ $# -gt 0 ] || set -- cpu gpu
for what in "$@"; do
    out=dist/raylane-$what.cdx.json
    options=(--pyproject pyproject.toml --mc-type application --of JSON --output-reproducible --validate -o "$out")
    case $what in
        cpu | gpu) PYTHONWARNINGS=ignore "$tools/cyclonedx-py" requirements "requirements/image-$what.lock" "${options[@]}" ;;
        environment) PYTHONWARNINGS=ignore "$tools/cyclonedx-py" environment .venv "${options[@]}" ;;
        *) echo "error: $what: allowed: cpu, gpu, environment" >&2; exit 2 ;;
    esac
    echo "$out: $("$tools/python" -c 'import json, sys; print(len(json.load(open(sys.argv[1]))["components"]))' "$out") components"
done
