"""Arrows that go up, impl blocks out of place and types that are several, which checks/layers.py has to find: in each the
files, and what is added to them."""

MANY = " ".join(f"fn planted_{number}() {{}}" for number in range(51))
SOME = " ".join(f"fn planted_{number}() {{}}" for number in range(26))
ORDER, PFN, LIB = (f"crates/arch/src/{name}.rs" for name in ("order", "pfn", "lib"))

# pfn lies above order, and platform above access.
PLANTED = [
    {ORDER: "use crate::pfn::Pfn;"},
    {ORDER: "use super::pfn::Pfn as Frame;"},
    {ORDER: "use crate::{addr::VirtAddr, platform::{Asid, Pin}};"},
    {ORDER: "use crate::pfn::*;"},
    {ORDER: "pub(crate) use crate::platform::TlbFlush;"},
    {ORDER: "fn planted(_: crate::Pfn) {}"},
    {ORDER: "const PLANTED: u64 = crate::pfn::planted!();"},
    {"crates/arch/src/paging/mod.rs": "mod planted { fn planted() { super::super::platform::planted() } }"},
    {ORDER: "impl crate::addr::VirtAddr { fn planted() {} }"},
    {"crates/arch/src/access.rs": "impl<T> Asid where T: Copy { fn planted() {} }"},
    {"crates/swap/Cargo.toml": "[dependencies.planted]\n[dependencies]\nquire-space.workspace = true"},
    # What lib.rs defines lies above all modules.
    {LIB: "pub struct Planted;", ORDER: "use crate::Planted;"},
    {LIB: "pub struct Planted;", ORDER: "impl Planted { fn planted() {} }"},
    # Methods, by their names.
    {PFN: "impl Pfn { fn planted_method(&self, _: u64) {} }", ORDER: "fn planted(pfn: impl Copy) { pfn.planted_method(1) }"},
    {PFN: "impl Pfn { fn planted_method<T>(&self) {} }", ORDER: "fn planted(pfn: u8) { pfn . planted_method::<u8>() }"},
    # Circles of submodules, an arrow in a tool, and a module that is in no list.
    {"crates/arch/src/paging/one.rs": "use super::two::Two;", "crates/arch/src/paging/two.rs": "use super::one::One;"},
    {"tools/fuzz/src/bytes.rs": "use crate::memory::run;"},
    {"tools/fuzz/src/one.rs": "use crate::bytes::Bytes;"},
    # Types that are several: by functions, by files, by an extension trait, by Deref.
    {ORDER: f"struct Planted;\nimpl Planted {{ {MANY} }}"},
    {ORDER: "struct Planted;", **{f"crates/arch/src/order/in_{number}.rs": "impl Planted { fn planted() {} }"
                                 for number in range(9)}},
    {ORDER: f"struct Planted;\nimpl Planted {{ {SOME} }}",
     PFN: f"trait PlantedMore {{ {SOME} }}\nimpl PlantedMore for crate::order::Planted {{ {SOME} }}"},
    {ORDER: f"struct Planted;\nimpl Planted {{ {SOME} }}\nstruct Over;\nimpl Over {{ {SOME} }}\n"
            "impl core::ops::Deref for Over { type Target = Planted; fn deref(&self) -> &Planted { self } }"},
]
