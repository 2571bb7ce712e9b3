//! A machine in this process: two programs share memory by fork, one is killed, and nothing is left behind.
//!
//! `cargo run -p quire-host --example embed`

use quire_host::{HostConfig, Machine};
use quire_mm::MemoryConfig;
use quire_mm::platform::PAGE_SIZE;
use quire_mm::proc;
use quire_mm::space::{MapRequest, Protection};
use std::error::Error;

/// What the example prints.
pub(crate) fn run() -> Result<String, Box<dyn Error>> {
    let machine: Machine = Machine::new(&HostConfig::with_ram(64 << 20).paranoid(), MemoryConfig::default())?;
    let memory = machine.memory();
    let cpu = machine.vcpu(0)?;
    let mut out = String::new();

    let parent = memory.create_space()?;
    let request = MapRequest::anonymous(8 * PAGE_SIZE, Protection::READ | Protection::WRITE);
    let addr = parent.mmap(&request)?;
    for page in 0..4 {
        cpu.program(&parent).write_u64(addr.checked_add(page * PAGE_SIZE).ok_or("overflow")?, page + 1)?;
    }

    // The child reads what its parent wrote; its write gets a copy of its own.
    let child = parent.fork()?;
    cpu.program(&child).write_u64(addr, 99)?;
    let (ours, theirs) = (cpu.program(&parent).read_u64(addr)?, cpu.program(&child).read_u64(addr)?);
    out += &format!("the parent reads {ours}, the child {theirs}\n");

    // A write where nothing may be written is an error, as a signal would be.
    parent.mprotect(addr, PAGE_SIZE, Protection::READ, false)?;
    let refused = cpu.program(&parent).write_u64(addr, 7);
    out += &format!("a write to a page for reading: {}\n", refused.err().ok_or("it was not refused")?);

    out += &format!("the parent has {} KiB of pages\n", parent.figures().resident_anonymous >> 10);
    proc::maps(&parent, &mut out)?;
    drop((parent, child));
    let mut left = 0;
    memory.for_each_resident(|_, _| left += 1);
    out += &format!("address spaces left: {left}; the audit finds {}\n", machine.audit().len());
    Ok(out)
}

#[allow(dead_code, reason = "a test includes this file and has a main of its own")]
fn main() -> Result<(), Box<dyn Error>> {
    print!("{}", run()?);
    Ok(())
}
