#!/usr/bin/env bash
# Installs a locked set of tools into .venv-tools/NAME, apart from raylane's own environment, and prints the folder of its commands.
# usage: infra/tools.sh checkov|bom|routers        (requirements/tools-NAME.lock; does nothing when what is there is up to date)
set -euo pipefail
cd "$(dirname "$0")/.."
name=${1:?usage: infra/tools.sh checkov|bom|routers}
lock=requirements/tools-$name.lock
[ -f "$lock" ] || { echo "error: there is no $lock; allowed: checkov, bom, routers" >&2; exit 2; }
folder=.venv-tools/$name
print=$(sha256sum < "$lock" | cut -c1-16)
mkdir -p .venv-tools
exec 9> ".venv-tools/$name.lock"
flock 9 # two tests may ask at once
if [ "$(cat "$folder/.installed" 2> /dev/null)" != "$print" ]; then
    rm -rf "$folder"
    "${PYTHON:-python3.11}" -m venv "$folder" >&2
    "$folder/bin/python" -m pip --disable-pip-version-check install -q --no-compile --no-deps --require-hashes -r "$lock" 2> >(grep -v '^WARNING: Location' >&2) >&2
    echo "$print" > "$folder/.installed"
fi
echo "$PWD/$folder/bin"
