//! The devices of a life.

use crate::common::Random;
use crate::disk::Disk;
use quire_host::Machine;
use quire_host::swap::{Completion, SlowConfig, SlowDevice};
use quire_mm::swap::{CompressedRam, DeviceId, Lz4, RamDisk, SwapOffError, SwapOnOptions};

/// What a device is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// In the host's memory.
    Disk,
    /// The same, but it completes later.
    Slow,
    /// In the machine's memory, as it is.
    RamDisk,
    /// In the machine's memory, compressed.
    Compressed,
}

/// A device that can be in use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub(crate) kind: Kind,
    pub(crate) slots: u64,
    pub(crate) priority: Option<i16>,
}

/// The devices, and under which number each is in use.
#[derive(Debug, Default)]
pub(crate) struct Devices(Vec<(Choice, Option<DeviceId>)>);

impl Devices {
    /// Adds all of `choices`.
    pub(crate) fn new(machine: &Machine, choices: &[Choice]) -> Self {
        let on = |&choice: &Choice| (choice, Some(begin(machine, choice).expect("there is memory")));
        Self(choices.iter().map(on).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes a device, or adds it again. Returns what happened.
    pub(crate) fn change(
        &mut self,
        machine: &Machine,
        random: &mut Random,
    ) -> Result<&'static str, &'static str> {
        let Some((choice, id)) = self.0.iter_mut().find(|(_, id)| id.is_none()) else {
            let nth = random.below(self.0.len() as u64) as usize;
            return self.end(machine, nth, random);
        };
        *id = begin(machine, *choice);
        if id.is_some() { Ok("swapon") } else { Err("no swapon") }
    }

    fn end(
        &mut self,
        machine: &Machine,
        nth: usize,
        random: &mut Random,
    ) -> Result<&'static str, &'static str> {
        let (choice, on) = &mut self.0[nth];
        let id = on.unwrap_or_else(|| panic!("{choice:?} is not in use"));
        let mut patience = random.below(400);
        let goes_on = || {
            patience = patience.saturating_sub(1);
            patience > 0
        };
        match machine.memory().swapoff(id, goes_on) {
            Ok(()) => {
                *on = None;
                Ok("swapoff")
            }
            Err(SwapOffError::Interrupted) => Err("swapoff interrupted"),
            Err(SwapOffError::OutOfMemory(_)) => Err("no memory for swapoff"),
            Err(SwapOffError::NotOn) => panic!("the device is in use"),
        }
    }

    /// Removes all devices, which hold no page.
    pub(crate) fn end_all(&mut self, machine: &Machine) {
        for (choice, id) in &mut self.0 {
            if let Some(id) = id.take() {
                machine.memory().swapoff(id, || true).unwrap_or_else(|error| panic!("{choice:?}: {error}"));
            }
        }
    }
}

fn begin(machine: &Machine, choice: Choice) -> Option<DeviceId> {
    let Choice { kind, slots, priority } = choice;
    let options = SwapOnOptions { priority, discard: slots % 2 == 0 };
    let memory = machine.memory();
    match kind {
        Kind::Disk => memory.swapon(Disk::new(slots).0, options).ok(),
        Kind::RamDisk => memory.swapon(RamDisk::new(memory.frames(), slots).ok()?, options).ok(),
        Kind::Compressed => {
            memory.swapon(CompressedRam::new(memory.frames(), slots, Lz4).ok()?, options).ok()
        }
        Kind::Slow => {
            let config =
                SlowConfig { completion: Completion::AfterReaps(2), queue: 8, ..SlowConfig::default() };
            let slow = SlowDevice::new(Disk::new(slots).0, config);
            memory.swapon(slow, options).ok()
        }
    }
}
