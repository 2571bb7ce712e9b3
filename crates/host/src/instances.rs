//! The memory manager on the default machine, compiled with this crate.
//!
//! Generic code is compiled in each crate that uses it: every test and every tool would compile the whole
//! memory manager for [`HostPlatform`] again. At the dev profile's `opt-level` rustc lets them link what a
//! library has compiled already, and this names what nearly all else is reached from. Release builds share
//! nothing and do not have it.

use crate::memory::Machine;
use crate::platform::HostPlatform;
use quire_arch::paging::X86_64Level4;
use quire_mm::Memory;
use quire_mm::abi::{self, CallNumber, CallOutcome, FaultIn, NoFiles};
use quire_mm::space::Space;

type Host = HostPlatform<X86_64Level4>;

/// The entry points. Their addresses are of no use.
pub fn instances() -> [*const (); 12] {
    [
        Machine::<X86_64Level4>::new as *const (),
        Machine::<X86_64Level4>::audit as *const (),
        Machine::<X86_64Level4>::tick as *const (),
        core::ptr::drop_in_place::<Machine<X86_64Level4>> as *const (),
        Memory::<Host>::create_space as *const (),
        Memory::<Host>::kswapd_step as *const (),
        Memory::<Host>::khugepaged_step as *const (),
        Memory::<Host>::reclaim as *const (),
        Memory::<Host>::create_compressed_ram as *const (),
        Space::<'_, Host>::fork as *const (),
        core::ptr::drop_in_place::<Space<'_, Host>> as *const (),
        call as *const (),
    ]
}

fn call(space: &Space<'_, Host>, number: CallNumber, args: [u64; 6]) -> CallOutcome {
    abi::call(space, number, args, &NoFiles, &FaultIn(space))
}
