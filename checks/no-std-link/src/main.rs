//! The proof that Quire's core crates need neither std nor an allocator: a static program without either,
//! which builds a [`Memory`](quire_mm::Memory) over a static arena and leads a short memory life on it.
//!
//! It exits with 0 if everything came out as it must, else with 1 and a line on stderr. `std` cannot slip in:
//! it has a panic handler of its own, and two do not link; nor can `alloc`, since there is no global
//! allocator.

#![no_std]
#![no_main]

mod depths;
mod life;
mod machine;
mod names;
mod pair;
mod runtime;
mod stack;

use quire_mm::{Techniques, frame::PcpTechnique};

/// Called by `_start`, on an aligned stack.
#[unsafe(no_mangle)]
extern "C" fn entry() -> ! {
    machine::become_cpu(0);
    for pcp in [PcpTechnique::None, PcpTechnique::OrderZero] {
        let mut techniques = Techniques::default();
        techniques.pcp = pcp;
        life::lead(techniques);
    }
    depths::lead();
    runtime::exit(0)
}
