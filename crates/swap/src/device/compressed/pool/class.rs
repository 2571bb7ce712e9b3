//! Classes of sizes, and how many frames hold how many objects of each.

use crate::device::memory::PAGE;
use crate::device::slots::GRAIN;

/// Frames that are chained at most.
pub(super) const MAX_CHAIN: usize = 4;
/// The largest useful object: four frames would hold only four larger ones.
pub(super) const MAX_SIZE: usize = MAX_CHAIN * PAGE / (MAX_CHAIN + 1) / GRAIN * GRAIN;

/// Objects of one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Class {
    /// Bytes of each.
    pub(super) size: u32,
    /// Objects in a chain of frames.
    pub(super) objects: u32,
    /// Frames in the chain.
    pub(super) frames: u32,
}

impl Class {
    /// With the number of frames that wastes least at the end; the smallest such number.
    const fn of_size(size: usize) -> Self {
        let mut best = 1;
        let mut frames = 2;
        while frames <= MAX_CHAIN {
            if frames * PAGE % size * best < best * PAGE % size * frames {
                best = frames;
            }
            frames += 1;
        }
        Self { size: size as u32, objects: (best * PAGE / size) as u32, frames: best as u32 }
    }

    /// Whether objects of the other class take no more room in this one, which is larger.
    const fn serves(&self, other: &Self) -> bool {
        self.objects == other.objects && self.frames == other.frames
    }
}

/// Walks all sizes from the largest down, and fills both tables as far as they go.
const fn build<const COUNT: usize>() -> ([Class; COUNT], [u8; MAX_SIZE / GRAIN], usize) {
    let mut classes = [Class { size: 0, objects: 0, frames: 0 }; COUNT];
    let mut numbers = [0; MAX_SIZE / GRAIN];
    let mut last = Class::of_size(MAX_SIZE);
    let mut count = 0;
    let mut size = MAX_SIZE;
    while size > 0 {
        let class = Class::of_size(size);
        if !last.serves(&class) || count == 0 {
            if count < COUNT {
                classes[count] = class;
            }
            count += 1;
            last = class;
        }
        numbers[size / GRAIN - 1] = (count - 1) as u8;
        size -= GRAIN;
    }
    (classes, numbers, count)
}

/// Number of classes.
pub(super) const CLASS_COUNT: usize = build::<0>().2;
/// Every class, the largest first.
pub(super) const CLASSES: [Class; CLASS_COUNT] = build::<CLASS_COUNT>().0;
/// The class of each size, in units of [`GRAIN`].
const NUMBERS: [u8; MAX_SIZE / GRAIN] = build::<CLASS_COUNT>().1;

/// The number of the class for objects of `size` bytes, which is neither zero nor above [`MAX_SIZE`].
#[inline]
pub(super) const fn class_for(size: usize) -> usize {
    NUMBERS[(size - 1) / GRAIN] as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_has_a_class_that_is_large_enough_and_wastes_no_more_than_its_own_would() {
        for size in 1..=MAX_SIZE {
            let class = CLASSES[class_for(size)];
            assert!(class.size as usize >= size);
            let own = Class::of_size(size.next_multiple_of(GRAIN));
            assert_eq!((class.objects, class.frames), (own.objects, own.frames), "{size} bytes");
        }
    }

    #[test]
    fn chains_hold_their_objects_and_waste_little() {
        assert!(CLASSES.is_sorted_by(|a, b| a.size > b.size));
        for class in CLASSES {
            let bytes = class.frames as usize * PAGE;
            let used = (class.objects * class.size) as usize;
            assert!(used <= bytes, "{class:?}");
            assert!((bytes - used) * 100 <= bytes * 12, "{class:?} wastes {} bytes", bytes - used);
            assert!(class.objects > class.frames, "{class:?} is no better than whole frames");
        }
    }
}
