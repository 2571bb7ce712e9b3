//! The experiment `shm`: what the swap cache saves and costs for shared memory, and what clients of a shared
//! buffer take.
//!
//! Shared memory is swapped as the experiment `swap` does it with private memory, at the same sizes, so the
//! two tables can be laid side by side.

use crate::patterns::Contents;
use crate::prelude::*;
use crate::swap::count_sweep;
use crate::swap::sweep::{Sharing, Sweep, posted};
use crate::technique::SHM;

/// The experiment.
pub(crate) const EXPERIMENT: Experiment = Experiment { technique: &SHM, cases, count };

/// Bytes of the buffer.
const BUFFER: [u64; 3] = [128 * MIB, 32 * MIB, 4 * MIB];
/// Clients, one after the other.
const CLIENTS: [usize; 3] = [40, 10, 3];

fn cases(lab: &mut Lab<'_>) -> Done {
    posted(lab, Sharing::Shared)?;
    clients(lab)
}

/// A buffer that is in memory, and a fork for each client, which reads and writes all of it.
fn clients(lab: &mut Lab<'_>) -> Done {
    let (bytes, rounds) = (lab.scale.of(BUFFER), lab.scale.of(CLIENTS));
    lab.part("A shared buffer, and a fork for each client that writes to every page of it");
    let name = format!("{} MiB", bytes / MIB);
    let mut is_mapped = false;
    let job = move |process: &mut dyn Process| {
        if !is_mapped {
            process.share(0, bytes)?;
            process.touch(0, bytes, 1, Access::Write)?;
            is_mapped = true;
        }
        Ok(round_figures(&[process.client(0, bytes)? as f64 / pages(bytes) as f64]))
    };
    lab.both(&name, Terms::warm(bytes, bytes, rounds), job, &[Row::times("ns/page", 0)])
}

/// Swaps 16 MiB of zeros out or in: `shm-out-4k` or `shm-in-4k`.
fn count(what: &str, techniques: Techniques, times: u64) -> Option<Done> {
    let out = match what {
        "shm-out-4k" => true,
        "shm-in-4k" => false,
        _ => return None,
    };
    let sweep = Sweep::new(Folios::PAGES, Contents::Zeros, times * 16 * MIB, 16 * MIB).of(Sharing::Shared);
    Some(count_sweep(&sweep, techniques, times, out))
}
