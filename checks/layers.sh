#!/usr/bin/env bash
# Arrows go down only: between crates, and between the modules of a crate.
#
#     checks/layers.sh            fails on an arrow that goes up, an impl block out of place and a type that is several
#     checks/layers.sh --plant    plants one of each kind in the sources as read, and fails if one is not found
#
# The order of crates is that of docs/architecture.md; dependencies of tests do not count. The order of
# modules is the list "Modules, lowest first" at the head of a crate's lib.rs; one line may name several
# modules, which then do not use each other. What lib.rs itself defines lies above all of them. Arrows are
# `use` declarations and paths in the code, with what a module exports taken back to where it is defined, and
# calls of methods whose name stands for one module of the crate. Submodules with one parent do not use each
# other in a circle. An inherent impl block stands in the module of its type or in a submodule of that. A type
# has at most 50 functions in at most 8 files. Tests do not count.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
command -v python3 > /dev/null || { echo "python3 is missing; install it with: apt-get install python3" >&2; exit 2; }

case ${1:-} in
'' | --plant) exec python3 checks/layers.py . "$@" ;;
*)
    sed -n '2,/^set /{ /^#/ s/^# \{0,1\}//p }' "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
esac
