//! Packets from one thread to another: the workload behind the posted table.
//!
//! netperf's UDP_STREAM over loopback allocates a header object and a data buffer for each message, from the
//! slabs of the right size, on one CPU, and frees both on another. The same is done here without the network
//! around it: the sender copies its bytes in, the receiver copies them out, and a ring of bounded memory is
//! the socket's buffer.

use super::OBJECT_RAM;
use super::comparison::{SLABS, compare, figures, slowest, timed_on_cpus};
use crate::crew::Ring;
use crate::machine::{Machine, MachineSpec};
use crate::objects::{LARGEST, Object, Objects};
use crate::prelude::*;
use std::hint::black_box;

/// Messages in a round.
const MESSAGES: [usize; 3] = [40_000, 4000, 300];
/// Rounds at each size.
const ROUNDS: [usize; 3] = [24, 3, 1];
/// The posted table's sizes.
const SIZES: [usize; 9] = [64, 128, 256, 1024, 2048, 3312, 4096, 8192, 16384];
/// A header is as large as Linux's `struct sk_buff`, with its slab's padding.
const HEADER: usize = 256;
/// What Linux keeps behind the data in the same buffer (`struct skb_shared_info`). So a message of 16 KiB
/// takes a block of order 3.
const TRAILER: usize = 320;
/// What a socket holds before its sender has to wait (Linux's default of `rmem_max`).
const SOCKET_BYTES: usize = 212_992;

/// Every round sends as much, so the mean time of a bit gives the harmonic mean of the rates.
const ROWS: [Row; 3] = [
    Row::higher("throughput", "Mbit/s", 1, |times| 1000.0 / times.mean().max(1e-12)),
    Row::Ratio(0),
    Row::lower("blocks_taken", "per 1000 messages", SLABS, Series::mean),
];

struct Message {
    header: Object,
    data: Object,
}

/// Sends so many messages, or stops at the first allocation failure.
fn send(objects: &Objects<'_>, (messages, size): (usize, usize), ring: &Ring<Message>) -> Done {
    let platform = objects.machine().frames().platform();
    let payload = vec![7; size];
    for _ in 0..messages {
        // Pinned for a message: a system call is usually not disturbed between its two allocations.
        let pin = platform.pin();
        let mut header = objects.allocate(&pin, HEADER)?;
        let mut data = match objects.allocate(&pin, size + TRAILER) {
            Ok(data) => data,
            Err(error) => {
                // SAFETY: allocated from these objects just now.
                unsafe { objects.free(&pin, header) };
                return Err(error.into());
            }
        };
        drop(pin);
        header.write(&[1; 64]);
        data.write(black_box(&payload));
        ring.send(Message { header, data });
    }
    Ok(())
}

/// Receives until no message can follow.
fn receive(objects: &Objects<'_>, size: usize, ring: &Ring<Message>) {
    let platform = objects.machine().frames().platform();
    let mut payload = vec![0; size];
    while let Some(Message { header, data }) = ring.receive() {
        data.read(black_box(&mut payload));
        let pin = platform.pin();
        // SAFETY: the sender allocated both from these objects.
        unsafe {
            objects.free(&pin, data);
            objects.free(&pin, header);
        }
    }
}

fn packets(machine: &Machine, messages: usize, size: usize) -> Done<Rounds<'_>> {
    let objects = Objects::new(machine)?;
    Ok(Box::new(move |_| {
        let ring = Ring::new((SOCKET_BYTES / (HEADER + size + TRAILER)).max(2));
        let (threads, mut counts) = timed_on_cpus(machine, 2, |number| {
            if number > 0 {
                receive(&objects, size, &ring);
                return Ok(());
            }
            let sent = send(&objects, (messages, size), &ring);
            ring.finish();
            sent
        });
        let time = slowest(threads)? / messages as f64;
        if size + TRAILER > LARGEST {
            counts[2] += messages as u64;
        }
        Ok(figures(&[time, time / (8 * size) as f64], counts, messages))
    }))
}

pub(super) fn part(lab: &mut Lab<'_>) -> Done {
    let [rounds, messages] = [ROUNDS, MESSAGES].map(|amounts| lab.scale.of(amounts));
    let spec = MachineSpec { backed: true, ..MachineSpec::new(lab.scale.of(OBJECT_RAM), 2) };
    lab.part("Packets, 2 threads: harmonic mean of the rounds; lock takes for 1000 messages");
    SIZES.into_iter().try_for_each(|size| {
        let (name, rows) = (format!("packets of {size} bytes"), [(String::new(), &ROWS[..])]);
        compare(lab, &name, (spec, rounds), |machine| packets(machine, messages, size), &rows)
    })
}
