//! The files of the images of programs that may be files in memory themselves.
//!
//! Linux counts the pages of a program that lies on tmpfs as shared memory (`RssShmem`). Nothing is missing
//! in its recording: its page faults are there, and the group that wrote the file was charged. An image does
//! not say on which file system it lies. Its device does, where that is a disk, or where the program maps
//! another file of it by a call, which tells the kind.

use quire_trace::event::{Call, ExecImage, FileKind};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

/// Devices that may hold files in memory have no driver: their numbers begin with 0, as those of btrfs, overlays
/// and network file systems do.
fn may_be_memory(device: u64) -> bool {
    libc::major(device) == 0
}

/// Follows what address spaces have of them.
#[derive(Debug, Default)]
pub(super) struct OwnFiles {
    /// By the number of an address space: how many bytes its image maps of files of a device.
    images: HashMap<usize, Rc<BTreeMap<u64, u64>>>,
    /// Devices of which a file was mapped that is none in memory.
    disks: HashSet<u64>,
}

impl OwnFiles {
    /// Address space number `number` begins with this image.
    pub(super) fn exec(&mut self, number: usize, image: &ExecImage) {
        let mut devices = BTreeMap::<u64, u64>::new();
        let files = image.mappings.iter().filter(|mapping| mapping.inode != 0);
        for mapping in files.filter(|mapping| may_be_memory(mapping.device)) {
            let bytes = devices.entry(mapping.device).or_default();
            *bytes = bytes.saturating_add(mapping.end.saturating_sub(mapping.start));
        }
        if !devices.is_empty() {
            self.images.insert(number, Rc::new(devices));
        }
    }

    /// The child has what the parent has.
    pub(super) fn fork(&mut self, parent: usize, child: usize) {
        if let Some(devices) = self.images.get(&parent).map(Rc::clone) {
            self.images.insert(child, devices);
        }
    }

    /// The address space ends.
    pub(super) fn leave(&mut self, number: usize) {
        self.images.remove(&number);
    }

    /// A call maps a file.
    pub(super) fn call(&mut self, call: &Call) {
        if let Some(file) = call.file().filter(|file| file.kind == FileKind::Regular)
            && may_be_memory(file.device)
        {
            self.disks.insert(file.device);
        }
    }

    /// What of the shared memory that Linux has of this address space can be its image, in bytes.
    pub(super) fn bytes(&self, number: usize) -> u64 {
        let devices = self.images.get(&number).into_iter().flat_map(|devices| devices.iter());
        let memory = devices.filter(|(device, _)| !self.disks.contains(device));
        memory.fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes))
    }
}
