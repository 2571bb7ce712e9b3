//! The frame allocator and its heap alone: no address spaces, no page tables.
//!
//! `cargo run -p quire-host --example frames`

use quire_arch::Order;
use quire_frame::{FrameConfig, Frames, KernelFrames};
use quire_host::{HostConfig, HostPlatform};
use quire_slab::KernelHeap;
use std::alloc::Layout;
use std::error::Error;

/// What the example prints.
pub(crate) fn run() -> Result<String, Box<dyn Error>> {
    // Any `Platform` will do: of it only its RAM, its CPUs and pins are used here.
    let platform: HostPlatform = HostPlatform::new(&HostConfig::with_ram(16 << 20))?;
    let _cpu = platform.vcpu(0)?;
    let frames = Frames::new(platform, FrameConfig::default())?;
    let kernel = KernelFrames::new(&frames);
    let free = frames.reports().free_frames();
    let mut out = String::new();

    let order = Order::new(4).ok_or("no such order")?;
    let block = kernel.allocate_zeroed(order)?;
    out += &format!(
        "{} frames in a block that is aligned to its size: {}\n",
        order.pages(),
        block.is_aligned(order)
    );
    out += &format!("frames in use: {}\n", free - frames.reports().free_frames());
    // SAFETY: allocated above, and used by nothing.
    unsafe { kernel.free(block, order) }?;
    // SAFETY: none; a second time is refused, since the block is free.
    let again = unsafe { kernel.free(block, order) };
    out += &format!("given back twice: {}\n", again.err().ok_or("it was not refused")?);
    out += &format!("frames in use: {}\n", free - frames.reports().free_frames());

    let heap = KernelHeap::new(kernel)?;
    let layout = Layout::new::<[u64; 5]>();
    let objects = (0..1000).map(|_| heap.allocate(layout)).collect::<Result<Vec<_>, _>>()?;
    let report =
        quire_slab::cache_reports(&frames).find(|cache| cache.in_use > 0).ok_or("no cache is in use")?;
    out += &format!("{} objects of {} bytes in {}\n", report.in_use, layout.size(), report.name);
    for object in objects {
        // SAFETY: allocated above with this layout, and used by nothing.
        unsafe { heap.free(object, layout) };
    }
    heap.shrink();
    let mut violations = 0;
    frames.audit().validate(&mut |_| violations += 1);
    out += &format!("the audit finds {violations}\n");
    Ok(out)
}

#[allow(dead_code, reason = "a test includes this file and has a main of its own")]
fn main() -> Result<(), Box<dyn Error>> {
    print!("{}", run()?);
    Ok(())
}
