//! Swap and memory groups under pressure: a program that needs more than its group may have goes on, more
//! slowly.
//!
//! `cargo run -p quire-host --example pressure`

use quire_host::{HostConfig, Machine};
use quire_mm::MemoryConfig;
use quire_mm::frame::VmEvent;
use quire_mm::memcg::MemcgId;
use quire_mm::platform::{PAGE_SIZE, VirtAddr};
use quire_mm::proc;
use quire_mm::space::{MapRequest, Protection};
use quire_mm::swap::SwapOnOptions;
use std::error::Error;

/// 16 MiB.
const PAGES: u64 = 4096;

/// What the example prints.
pub(crate) fn run() -> Result<String, Box<dyn Error>> {
    let machine: Machine = Machine::new(&HostConfig::with_ram(64 << 20), MemoryConfig::default())?;
    let memory = machine.memory();
    let cpu = machine.vcpu(0)?;
    let mut out = String::new();

    // 32 MiB of swap, compressed, in the machine's own RAM; and a group that may have 8 MiB.
    let device = memory.swapon(memory.create_compressed_ram(8192)?, SwapOnOptions::default())?;
    let group = memory.create_memcg(MemcgId::ROOT, "small")?;
    memory.write_memcg_file(group, "memory.max", "8M")?;

    let space = memory.create_space()?;
    space.set_memcg(group)?;
    let request = MapRequest::anonymous(PAGES * PAGE_SIZE, Protection::READ | Protection::WRITE);
    let base = space.mmap(&request)?;
    let page = |number: u64| VirtAddr(base.0 + number * PAGE_SIZE);
    for number in 0..PAGES {
        cpu.program(&space).write_u64(page(number), number)?;
    }
    for number in 0..PAGES {
        let found = cpu.program(&space).read_u64(page(number))?;
        assert_eq!(found, number, "a page came back with other contents");
    }
    out += &format!("{PAGES} pages written and read again\n");

    let mut max = String::new();
    proc::memcg_file(memory, "small/memory.max", None, &mut max)?;
    let mut peak = String::new();
    proc::memcg_file(memory, "small/memory.peak", None, &mut peak)?;
    let peak: u64 = peak.trim().parse()?;
    out += &format!("memory.max {} bytes, never above it: {}\n", max.trim(), peak <= 8 << 20);
    let (written, read) = (memory.event(VmEvent::Pswpout), memory.event(VmEvent::Pswpin));
    out += &format!("more than half went out and came back: {}\n", written > PAGES / 2 && read > PAGES / 2);

    // Without a limit all of it fits, so the device can go.
    memory.write_memcg_file(group, "memory.max", "max")?;
    memory.swapoff(device, || true)?;
    out += &format!("after swapoff {} KiB are in memory\n", space.figures().resident_anonymous >> 10);
    drop(space);
    memory.remove_memcg(group)?;
    out += &format!("the audit finds {}\n", machine.audit().len());
    Ok(out)
}

#[allow(dead_code, reason = "a test includes this file and has a main of its own")]
fn main() -> Result<(), Box<dyn Error>> {
    print!("{}", run()?);
    Ok(())
}
