#!/usr/bin/env bash
# Tests with real trainers, then docs/trainers.md. First comes the environment with the packages of
# tests/trainers/requirements.txt: build/trainers is made where it is not there, any other is taken as it is. Then what
# pytest takes.
set -euo pipefail
cd "$(dirname "$0")/.."
own=build/trainers
venv=${1:-$own}
[ $# -eq 0 ] || shift
needs=tests/trainers/requirements.txt

if [ "$venv" = $own ] && ! cmp -s $needs $own/.made-from; then
    echo "trainers: installing the packages of $needs into $own: some gigabytes"
    rm -rf $own
    .venv/bin/python -m venv $own
    DS_BUILD_OPS=0 $own/bin/python -m pip install -q --disable-pip-version-check --no-input -r $needs
    cp $needs $own/.made-from
fi
result=0
TRAINERS_VENV=$venv .venv/bin/python -m pytest "${@:-tests/trainers}" || result=$?
.venv/bin/python -m tests.trainers.report docs/trainers.md
exit $result
