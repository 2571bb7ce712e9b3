//! Packets from one thread to another: the workload behind the posted table.
//!
//! netperf's UDP_STREAM over loopback allocates a header object and a data buffer for each message, from the
//! slabs of the right size, on one CPU, and frees both on another. The same is done here without the network
//! around it: the sender copies its bytes in, the receiver copies them out, and a ring of bounded memory is
//! the socket's buffer.

use super::OBJECT_RAM;
use super::comparison::{Comparison, Round, Workload, slowest, timed_on_cpus};
use crate::crew::pause;
use crate::error::LabError;
use crate::experiment::Lab;
use crate::machine::{Machine, MachineSpec};
use crate::objects::{LARGEST, Object, Objects};
use crate::report::Metric;
use crate::rounds::Series;
use core::sync::atomic::{AtomicBool, Ordering};
use crossbeam_queue::ArrayQueue;
use quire_arch::Platform;
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

const THROUGHPUT: Metric = Metric::higher("throughput", "Mbit/s");
const BLOCKS: Metric = Metric::lower("blocks_taken", "per 1000 messages");

struct Message {
    header: Object,
    data: Object,
}

struct Packets {
    objects: Objects,
    size: usize,
    messages: usize,
}

impl Packets {
    /// Sends every message, or stops at the first allocation failure.
    fn send(&self, machine: &Machine, ring: &ArrayQueue<Message>) -> Result<(), LabError> {
        let frames = machine.frames();
        let payload = vec![7; self.size];
        for _ in 0..self.messages {
            // Pinned for a message: a system call is usually not disturbed between its two allocations.
            let pin = frames.platform().pin();
            let mut header = self.objects.allocate(frames, &pin, HEADER)?;
            let data = self.objects.allocate(frames, &pin, self.size + TRAILER);
            let mut data = match data {
                Ok(data) => data,
                Err(error) => {
                    // SAFETY: allocated from these objects just now.
                    unsafe { self.objects.free(frames, &pin, header) };
                    return Err(error.into());
                }
            };
            drop(pin);
            header.write(&[1; 64]);
            data.write(black_box(&payload));
            let mut message = Message { header, data };
            let mut attempt = 0;
            while let Err(back) = ring.push(message) {
                message = back;
                pause(attempt);
                attempt += 1;
            }
        }
        Ok(())
    }

    /// Receives until no message can follow.
    fn receive(&self, machine: &Machine, ring: &ArrayQueue<Message>, done: &AtomicBool) {
        let frames = machine.frames();
        let mut payload = vec![0; self.size];
        let mut attempt = 0;
        loop {
            // Read before the ring is; pairs with the store after the last message.
            let last = done.load(Ordering::Acquire);
            let Some(Message { header, data }) = ring.pop() else {
                if last {
                    return;
                }
                pause(attempt);
                attempt += 1;
                continue;
            };
            attempt = 0;
            data.read(black_box(&mut payload));
            let pin = frames.platform().pin();
            // SAFETY: the sender allocated both from these objects.
            unsafe {
                self.objects.free(frames, &pin, data);
                self.objects.free(frames, &pin, header);
            }
        }
    }
}

impl Workload for Packets {
    fn round(&mut self, machine: &Machine, _number: usize) -> Result<Round, LabError> {
        let ring = ArrayQueue::new((SOCKET_BYTES / (HEADER + self.size + TRAILER)).max(2));
        let done = AtomicBool::new(false);
        let (threads, mut counts) = timed_on_cpus(machine, 2, |number| {
            if number > 0 {
                self.receive(machine, &ring, &done);
                return Ok(());
            }
            let sent = self.send(machine, &ring);
            done.store(true, Ordering::Release);
            sent
        });
        let time = slowest(threads)?;
        if self.size + TRAILER > LARGEST {
            counts.slabs += self.messages as u64;
        }
        Ok(Round { figures: vec![time / self.messages as f64], counts, operations: self.messages as u64 })
    }

    fn end(&mut self, machine: &Machine) {
        self.objects.shrink(machine);
    }
}

pub(super) fn part(lab: &mut Lab<'_>) -> Result<(), LabError> {
    lab.part("Packets, 2 threads: harmonic mean of the rounds; lock takes for 1000 messages");
    for size in SIZES {
        lab.case(&format!("packets of {size} bytes"), |case, name| {
            let [rounds, messages] = [ROUNDS, MESSAGES].map(|amounts| case.scale.of(amounts));
            let spec = MachineSpec { backed: true, ..MachineSpec::new(case.scale.of(OBJECT_RAM), 2) };
            let comparison = Comparison::run(case, spec, rounds, |machine| {
                Ok(Packets { objects: Objects::new(machine)?, size, messages })
            })?;
            // Every round sends as much, so the mean time gives the harmonic mean of the rates.
            let bits = size as f64 * 8.0;
            let rate = |times: &Series| bits * 1000.0 / times.mean().max(1e-9);
            case.add(name, THROUGHPUT, comparison.outcome.values(0, rate));
            case.ratio(name, &comparison.outcome, 0);
            comparison.add_blocks(case, name, BLOCKS);
            comparison.add_costs(case, name);
            Ok(())
        })?;
    }
    Ok(())
}
