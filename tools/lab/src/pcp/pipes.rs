//! Groups of senders and receivers over pipes of slab objects, after hackbench.
//!
//! Each sender of a group sends to every receiver of it; a receiver reads one pipe. hackbench makes each of
//! them a process. Here a thread that uses a machine holds one of its vCPUs, so two threads run the senders
//! and receivers as tasks, in turn, and a task whose pipe is full or empty yields. That leaves the host's
//! scheduler out of the figures. Half of the messages change threads on their way.

use super::OBJECT_RAM;
use super::comparison::{TIMES, compare, figures, slowest, timed_on_cpus};
use crate::crew::pause;
use crate::machine::{Machine, MachineSpec};
use crate::objects::{Object, Objects};
use crate::prelude::*;
use core::sync::atomic::{AtomicBool, Ordering};
use crossbeam_queue::ArrayQueue;

/// Groups of senders and receivers.
const GROUPS: [usize; 3] = [8, 2, 1];
/// Messages from each sender to each receiver of its group.
const MESSAGES: [usize; 3] = [20, 5, 1];
const ROUNDS: [usize; 3] = [20, 3, 1];
const THREADS: usize = 2;
/// Senders of a group, and its receivers, as in hackbench.
const MEMBERS: usize = 20;
/// Messages that a pipe holds: Linux's number of buffers.
const PIPE_SLOTS: usize = 16;
/// Sizes of messages, in turn.
const SIZES: [usize; 4] = [100, 512, 2048, 4096];
/// Messages that a task sends or receives before the next one's turn.
const TURN: usize = 16;

struct Pipes<'m> {
    objects: Objects<'m>,
    groups: usize,
    /// From each sender to each receiver of its group.
    messages: usize,
}

/// A sender or a receiver. The tasks of a thread run in turn.
struct Task {
    group: usize,
    /// A receiver's pipe. A sender has none: it goes over all of its group's.
    pipe: Option<usize>,
    /// Messages still to send or receive.
    left: usize,
}

impl Pipes<'_> {
    /// The tasks of a thread. Receivers are assigned in pairs, so that each sender has as many on its own
    /// thread as on the other one.
    fn tasks(&self, thread: usize) -> Vec<Task> {
        let left = MEMBERS * self.messages;
        let senders = (0..MEMBERS).filter(|member| member % THREADS == thread).map(|_| None);
        let receivers = (0..MEMBERS).filter(|member| member / 2 % THREADS == thread).map(Some);
        let members: Vec<Option<usize>> = senders.chain(receivers).collect();
        let of_group = |group| members.iter().map(move |&pipe| Task { group, pipe, left });
        (0..self.groups).flat_map(of_group).collect()
    }

    /// A turn of a task. Returns whether it could do anything.
    fn turn(&self, pin: &Pin<'_, HostPlatform>, pipes: &[ArrayQueue<Object>], task: &mut Task) -> Done<bool> {
        let before = task.left;
        let mut text = [7; SIZES[SIZES.len() - 1]];
        for _ in 0..TURN.min(before) {
            if let Some(pipe) = task.pipe {
                let Some(object) = pipes[task.group * MEMBERS + pipe].pop() else { break };
                object.read(&mut text);
                // SAFETY: the sender allocated it from these objects.
                unsafe { self.objects.free(pin, object) };
            } else {
                let pipe = &pipes[task.group * MEMBERS + task.left % MEMBERS];
                // Only other senders fill it meanwhile, so it may still turn out to be full below.
                if pipe.is_full() {
                    break;
                }
                // Not always the same size into the same pipe.
                let size = SIZES[(task.left + task.left / MEMBERS) % SIZES.len()];
                let mut object = self.objects.allocate(pin, size)?;
                object.write(&text[..size]);
                if let Err(back) = pipe.push(object) {
                    // SAFETY: from these objects, just now.
                    unsafe { self.objects.free(pin, back) };
                    break;
                }
            }
            task.left -= 1;
        }
        Ok(task.left < before)
    }

    /// Runs the thread's tasks to their ends, or until one of any thread fails.
    fn run(&self, thread: usize, pipes: &[ArrayQueue<Object>], failed: &AtomicBool) -> Done {
        let platform = self.objects.machine().frames().platform();
        let mut tasks = self.tasks(thread);
        let mut attempt = 0;
        while !tasks.is_empty() && !failed.load(Ordering::Relaxed) {
            let mut progress = false;
            for task in &mut tasks {
                let turn = self.turn(&platform.pin(), pipes, task);
                progress |= turn.inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
            }
            tasks.retain(|task| task.left > 0);
            attempt = if progress { 0 } else { attempt + 1 };
            if !progress {
                pause(attempt);
            }
        }
        Ok(())
    }

    fn round(&self) -> Done<RoundFigures> {
        let pipes = (0..self.groups * MEMBERS).map(|_| ArrayQueue::new(PIPE_SLOTS));
        let (pipes, failed) = (pipes.collect::<Vec<_>>(), AtomicBool::new(false));
        let machine = self.objects.machine();
        let (threads, counts) = timed_on_cpus(machine, THREADS, |number| self.run(number, &pipes, &failed));
        let messages = self.groups * MEMBERS * MEMBERS * self.messages;
        Ok(figures(&[slowest(threads)? / messages as f64], counts, messages))
    }
}

fn pipes(machine: &Machine, groups: usize, messages: usize) -> Done<Rounds<'_>> {
    let pipes = Pipes { objects: Objects::new(machine)?, groups, messages };
    Ok(Box::new(move |_| pipes.round()))
}

pub(super) fn part(lab: &mut Lab<'_>) -> Done {
    let [groups, messages, rounds] = [GROUPS, MESSAGES, ROUNDS].map(|amounts| lab.scale.of(amounts));
    let spec = MachineSpec { backed: true, ..MachineSpec::new(lab.scale.of(OBJECT_RAM), THREADS) };
    lab.part("Pipes, 2 threads: ns for each message; lock takes for 1000 messages");
    let name = format!("pipes, {groups} groups of {MEMBERS} senders and {MEMBERS} receivers");
    let rows = [(String::new(), &TIMES[0][..])];
    compare(lab, &name, (spec, rounds), |machine| pipes(machine, groups, messages), &rows)
}
