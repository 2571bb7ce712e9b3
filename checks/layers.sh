#!/usr/bin/env bash
# Arrows go down only: between crates, and between the modules of a crate in crates/.
#
#     checks/layers.sh            fails on an arrow that goes up, and on an impl block out of place
#     checks/layers.sh --list     prints those that the bounds in checks/layers.py still allow, too
#     checks/layers.sh --plant    plants one of each kind in a copy of the tree, and fails if one is not found
#
# The order of crates is that of docs/architecture.md; dependencies of tests do not count. The order of modules is the list
# "Modules, lowest first" at the head of a crate's lib.rs; one line may name several modules, which then do not use each
# other. Arrows are `use` declarations and paths in the code, with what lib.rs exports taken back to its module; tests do
# not count. An inherent impl block stands in the module of its type or in a submodule of that.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
command -v python3 > /dev/null || { echo "python3 is missing; install it with: apt-get install python3" >&2; exit 2; }

case ${1:-} in
'') exec python3 checks/layers.py . ;;
--list) exec python3 checks/layers.py . --list ;;
--plant) ;;
*)
    sed -n '2,/^set /{ /^#/ s/^# \{0,1\}//p }' "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
esac

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
missed=0

# Adds TEXT to FILE of a fresh copy, and looks for what must be found.
plant() { # FILE TEXT
    rm -rf "${copy:?}/"*
    cp -r crates docs tools "$copy" 2> /dev/null
    printf '%s\n' "$2" >> "$copy/$1"
    if python3 checks/layers.py "$copy" > /dev/null 2>&1; then
        echo "not found: $2 in $1" >&2
        missed=1
    fi
}

cp -r crates docs tools "$copy"
python3 checks/layers.py "$copy" > /dev/null || { echo "the tree as it is does not pass" >&2; exit 1; }

# pfn lies above order, and platform above access.
plant crates/arch/src/order.rs 'use crate::pfn::Pfn;'
plant crates/arch/src/order.rs 'use super::pfn::Pfn as Frame;'
plant crates/arch/src/order.rs 'use crate::{addr::VirtAddr, platform::{Asid, Pin}};'
plant crates/arch/src/order.rs 'use crate::pfn::*;'
plant crates/arch/src/order.rs 'pub(crate) use crate::platform::TlbFlush;'
plant crates/arch/src/order.rs 'fn planted(_: crate::Pfn) {}'
plant crates/arch/src/order.rs 'const PLANTED: u64 = crate::pfn::planted!();'
plant crates/arch/src/paging/mod.rs 'mod planted { fn planted() { super::super::platform::planted() } }'
plant crates/arch/src/order.rs 'impl crate::addr::VirtAddr { fn planted() {} }'
plant crates/arch/src/access.rs 'impl<T> Asid where T: Copy { fn planted() {} }'
plant crates/swap/Cargo.toml $'[dependencies.planted]\n[dependencies]\nquire-space.workspace = true'
exit "$missed"
