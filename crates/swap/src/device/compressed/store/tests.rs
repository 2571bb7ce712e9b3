//! A store whose objects are damaged.

use super::{CompressedStore, Contents, DeviceError, Gate, Lz4, StoreStatistics};
use crate::device::compressed::codec::{CODEC_OUTPUT, Codec, Damaged};
use crate::device::memory::{PAGE, bytes_of, words_of};
use crate::device::testing::{Machine, Random, TEST, assert_sound, frames, get, put};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, Ordering};
use quire_arch::{Order, Pfn, Platform};
use quire_frame::{AllocRequest, Frames, PcpTechnique};
use std::boxed::Box;
use std::sync::OnceLock;

#[test]
fn damage_is_an_error_and_does_no_harm() {
    let frames = frames(&[(1, 1024)], 1, PcpTechnique::default());
    let free = frames.reports().free_frames();
    let store = CompressedStore::<Machine, Lz4>::new(&frames, 512, Lz4).expect("there is memory");
    let page = get(&frames, Order::ZERO);
    // SAFETY: the page is the test's.
    let words = unsafe { words_of(&frames, page) };
    let mut random = Random(3);
    let mut found = 0;
    for round in 0..400_u64 {
        for (index, word) in words.iter().enumerate() {
            let value = if index % 3 == 0 { random.next() } else { index as u64 / 8 };
            word.store(value, Ordering::Relaxed);
        }
        store.store(&frames, round % 512, page).expect("there is memory");
        let pin = frames.platform().pin();
        let section = Gate::new(&frames).enter(&frames, &pin).expect("it is open");
        let locked = store.table.lock(&section, round % 512).expect("the slot has a word");
        let Contents::Packed { location, length } = locked.contents() else { panic!("it compresses") };
        let at = location.offset() + 4 + random.below(u64::from(length)) as usize;
        if at < PAGE {
            // SAFETY: inside of the page; the slot is locked.
            unsafe { *bytes_of(&frames, location.pfn()).as_ptr().add(at) ^= 1 << random.below(8) };
        }
        drop(locked);
        drop(section);
        drop(pin);
        match store.load(&frames, round % 512, page) {
            Ok(there) => assert!(there),
            Err(error) => {
                assert_eq!(error, DeviceError::Corrupt);
                found += 1;
            }
        }
    }
    assert!(found > 20, "{found} of 400 were found");
    store.close(&frames);
    put(&frames, page, Order::ZERO);
    assert_eq!(frames.reports().free_frames(), free);
    assert_sound(&frames);
}

#[test]
fn an_owner_that_is_just_being_told_keeps_its_object_in_place() {
    // Between the insertion and the word of the slot a new object has no owner: a compaction must leave it
    // alone, also where the slot has another object already.
    let frames = frames(&[(1, 1024)], 1, PcpTechnique::default());
    let store = CompressedStore::<Machine, Lz4>::new(&frames, 512, Lz4).expect("there is memory");
    let page = get(&frames, Order::ZERO);
    // SAFETY: the page is the test's.
    let words = unsafe { words_of(&frames, page) };
    let fill = |seed: u64| {
        words.iter().zip(0..).for_each(|(word, at)| word.store((at / 8) ^ seed, Ordering::Relaxed));
    };
    for slot in 0..300 {
        fill(slot);
        store.store(&frames, slot, page).expect("there is memory");
    }
    let pin = frames.platform().pin();
    let many: std::vec::Vec<_> = (0..300)
        .map(|owner| store.pool.insert(&frames, &pin, owner, &[owner as u8; 100]).expect("there is memory"))
        .collect();
    for (owner, &at) in many.iter().enumerate() {
        if owner % 4 != 0 {
            store.pool.remove(&frames, &pin, at);
        }
    }
    store.compact(&frames, u64::MAX);
    for slot in 0..300 {
        assert_eq!(store.load(&frames, slot, page), Ok(true));
        assert!(
            words.iter().zip(0..).all(|(word, at)| word.load(Ordering::Relaxed) == (at / 8) ^ slot),
            "slot {slot}"
        );
    }
    for (owner, &at) in many.iter().enumerate().filter(|(owner, _)| owner % 4 == 0) {
        let same = |bytes: &[u8]| assert_eq!(bytes, [owner as u8; 100]);
        // SAFETY: no other thread is there.
        unsafe { store.pool.with(&frames, (at, 100), &mut [0; 100], same) };
        store.pool.remove(&frames, &pin, at);
    }
    drop(pin);
    store.close(&frames);
    put(&frames, page, Order::ZERO);
}

#[test]
fn a_user_after_the_close_gets_an_error() {
    let frames = frames(&[(1, 1024)], 1, PcpTechnique::default());
    let free = frames.reports().free_frames();
    let store = CompressedStore::<Machine, Lz4>::new(&frames, 512, Lz4).expect("there is memory");
    let page = frames
        .allocate(&frames.platform().pin(), AllocRequest::new(Order::ZERO, TEST).zeroed())
        .expect("a page");
    store.store(&frames, 1, page).expect("there is memory");
    store.close(&frames);
    store.close(&frames);
    assert_eq!(store.store(&frames, 1, page), Err(DeviceError::Io));
    assert_eq!(store.load(&frames, 1, page), Err(DeviceError::Io));
    store.free(&frames, 1);
    assert_eq!(store.compact(&frames, u64::MAX), 0);
    assert_eq!(store.statistics(), StoreStatistics { mem_used_max: 0, ..Default::default() });
    put(&frames, page, Order::ZERO);
    assert_eq!(frames.reports().free_frames(), free);
}

/// A codec that stores another page of the same store while it compresses one. Of a page it keeps the first
/// word.
#[derive(Default)]
struct Nested {
    inner: OnceLock<(&'static Frames<Machine>, &'static CompressedStore<Machine, Nested>, Pfn)>,
    began: AtomicBool,
    result: OnceLock<Result<(), DeviceError>>,
}

impl Codec for Nested {
    type Workspace = ();
    const NAME: &'static str = "nested";

    fn init<'p>(&self, place: &'p mut MaybeUninit<()>) -> Option<&'p mut ()> {
        Some(place.write(()))
    }

    fn compress(&self, (): &mut (), page: &[u8; PAGE], output: &mut [u8; CODEC_OUTPUT]) -> Option<usize> {
        if let Some(&(frames, store, other)) = self.inner.get()
            && !self.began.swap(true, Ordering::Relaxed)
        {
            let _ = self.result.set(store.store(frames, 1, other));
        }
        output[..8].copy_from_slice(&page[..8]);
        Some(8)
    }

    fn decompress(&self, (): &mut (), compressed: &[u8], page: &mut [u8; PAGE]) -> Result<(), Damaged> {
        page[..8].copy_from_slice(compressed);
        Ok(())
    }
}

/// A codec that makes no workspace where it should, and shows one that it has elsewhere.
struct Elsewhere;

impl Codec for Elsewhere {
    type Workspace = Box<u64>;
    const NAME: &'static str = "elsewhere";

    fn init<'p>(&self, _place: &'p mut MaybeUninit<Box<u64>>) -> Option<&'p mut Box<u64>> {
        Some(Box::leak(Box::new(Box::new(7))))
    }

    fn compress(&self, _: &mut Box<u64>, _: &[u8; PAGE], _: &mut [u8; CODEC_OUTPUT]) -> Option<usize> {
        None
    }

    fn decompress(&self, _: &mut Box<u64>, _: &[u8], _: &mut [u8; PAGE]) -> Result<(), Damaged> {
        Err(Damaged)
    }
}

/// Hazard: a codec, which is safe code, has what it did not write taken for its workspace.
#[test]
fn a_codec_that_shows_another_workspace_is_refused() {
    let frames = frames(&[(1, 1024)], 1, PcpTechnique::default());
    let free = frames.reports().free_frames();
    let made = CompressedStore::<Machine, Elsewhere>::new(&frames, 512, Elsewhere);
    assert!(made.is_err());
    assert_eq!(frames.reports().free_frames(), free);
}

/// Hazard: a codec, which is safe code, gets to the workspace that it is working in a second time.
#[test]
fn a_codec_that_calls_its_store_does_not_share_its_workspace() {
    let frames: &'static _ = Box::leak(Box::new(frames(&[(1, 1024)], 1, PcpTechnique::default())));
    let store =
        CompressedStore::<Machine, Nested>::new(frames, 512, Nested::default()).expect("there is memory");
    let store: &'static CompressedStore<Machine, Nested> = Box::leak(Box::new(store));
    let page = |first: u64| {
        let page = get(frames, Order::ZERO);
        // SAFETY: the page is the test's.
        let words = unsafe { words_of(frames, page) };
        words.iter().zip(first..).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        page
    };
    let (outer, inner) = (page(7), page(9000));
    store.codec.inner.set((frames, store, inner)).expect("it is set once");
    store.store(frames, 0, outer).expect("there is memory");
    let result = store.codec.result.get().copied();
    assert_eq!(store.load(frames, 0, inner), Ok(true));
    // SAFETY: the page is the test's.
    let first = unsafe { words_of(frames, inner) }[0].load(Ordering::Relaxed);
    assert_eq!((first, result), (7, Some(Err(DeviceError::Io))), "what was compressed, and the second call");
    store.store(frames, 0, outer).expect("the workspace is there again");
    store.close(frames);
    [outer, inner].into_iter().for_each(|page| put(frames, page, Order::ZERO));
    assert_sound(frames);
}
