//! The requests of a file that are under way.
//!
//! A request is a word: nothing, or the number of its token and how far it is. So an end is believed once, of
//! a request that the backing was asked for, and nothing is allocated for it.

use crate::backing::{FileError, IoLimits, IoToken, Transferred};
use quire_sync::atomic::raw::{AtomicU64, Ordering};

const TOKEN_SHIFT: u32 = 2;
/// No report ends it: it is not made yet, or an end is being dealt with.
const HELD: u64 = 0;
/// The backing may have it.
const ASKED: u64 = 1;
/// It has ended, and the thread that began it fetches the result.
const ENDED: u64 = 2;
/// The thread that began it has panicked, and fetches no result.
const LOST: u64 = 3;

/// How a request ended: so many bytes are there, or an error.
pub(crate) type Outcome = Result<u64, FileError>;

/// A request, or room for one.
#[derive(Debug, Default)]
pub(crate) struct Request {
    word: AtomicU64,
    /// Pages of a write, from the first one: their folios are being written. A read has none.
    first: AtomicU64,
    pages: AtomicU64,
    bytes: AtomicU64,
    result: AtomicU64,
}

/// The pages and bytes of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    pub(crate) first: u64,
    /// 0 for a read.
    pub(crate) written: u32,
    pub(crate) bytes: u64,
}

/// All that a file may have under way.
#[derive(Debug, Default)]
pub(crate) struct Requests([Request; IoLimits::MOST_IN_FLIGHT as usize]);

impl Requests {
    /// Room for a request of the number `token`, among the first `most`.
    pub(crate) fn begin(&self, token: u64, most: u32, extent: Extent) -> Option<&Request> {
        let request = self.free(most).find(|request| {
            let held = token << TOKEN_SHIFT | HELD;
            request.word.compare_exchange(0, held, Ordering::Acquire, Ordering::Relaxed).is_ok()
        })?;
        request.first.store(extent.first, Ordering::Relaxed);
        request.pages.store(extent.written.into(), Ordering::Relaxed);
        request.bytes.store(extent.bytes, Ordering::Relaxed);
        Some(request)
    }

    /// Whether there is none.
    pub(crate) fn is_idle(&self) -> bool {
        // Acquire: pairs with the release of the thread that ended it.
        self.0.iter().all(|request| request.word.load(Ordering::Acquire) == 0)
    }

    /// Whether there is room.
    pub(crate) fn has_room(&self, most: u32) -> bool {
        self.free(most).next().is_some()
    }

    fn free(&self, most: u32) -> impl Iterator<Item = &Request> {
        let most = most.clamp(1, IoLimits::MOST_IN_FLIGHT) as usize;
        self.0.iter().take(most).filter(|request| request.word.load(Ordering::Relaxed) == 0)
    }

    /// The request whose end was reported, if there is such a one. It is the caller's to end.
    pub(crate) fn claim(&self, token: IoToken) -> Option<&Request> {
        let number = token.number();
        self.0.iter().find(|request| request.change(number, ASKED, HELD))
    }

    /// Makes room where a request was, the end of which was reported and no thread waits for. False if it is
    /// none of these.
    pub(crate) fn end_lost(&self, token: IoToken) -> bool {
        let number = token.number();
        let lost = self.0.iter().find(|request| request.change(number, LOST, HELD));
        lost.inspect(|request| request.clear()).is_some()
    }
}

impl Request {
    fn change(&self, token: u64, from: u64, to: u64) -> bool {
        let (from, to) = (token << TOKEN_SHIFT | from, token << TOKEN_SHIFT | to);
        // Release: what it covers is read by the one that ends it. Acquire: pairs with it.
        self.word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// From now on the backing may report its end.
    pub(crate) fn ask(&self, token: IoToken) {
        let asked = self.change(token.number(), HELD, ASKED);
        debug_assert!(asked, "a request is asked for twice");
    }

    /// The backing has not taken it. False if it reported it nevertheless: then it has ended.
    pub(crate) fn take_back(&self, token: IoToken) -> bool {
        self.change(token.number(), ASKED, HELD)
    }

    /// What it covers, for the thread that has claimed it.
    pub(crate) fn extent(&self) -> Extent {
        Extent {
            first: self.first.load(Ordering::Relaxed),
            written: self.pages.load(Ordering::Relaxed) as u32,
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }

    /// How many of its bytes are there.
    pub(crate) fn outcome(&self, result: Result<Transferred, FileError>) -> Outcome {
        let Extent { written, bytes, .. } = self.extent();
        match result? {
            Transferred::All => Ok(bytes),
            Transferred::Bytes(some) if written == 0 || some >= bytes => Ok(some.min(bytes)),
            Transferred::Zeros if written == 0 => Ok(0),
            // A write that did not write all.
            Transferred::Bytes(_) | Transferred::Zeros => Err(FileError::Io),
        }
    }

    /// Ends a read that the caller has claimed: the thread that waits for it fetches the outcome.
    pub(crate) fn end(&self, token: IoToken, outcome: Outcome) {
        let word = match outcome {
            Ok(bytes) => bytes << 1,
            Err(error) => (error as u64) << 1 | 1,
        };
        self.result.store(word, Ordering::Relaxed);
        let ended = self.change(token.number(), HELD, ENDED);
        debug_assert!(ended, "a request is ended twice");
    }

    /// The outcome of a read that has ended. From then on there is room for another one.
    pub(crate) fn fetch(&self, token: IoToken) -> Option<Outcome> {
        if !self.has_ended(token) {
            return None;
        }
        let word = self.result.load(Ordering::Relaxed);
        self.word.store(0, Ordering::Release);
        let error = FileError::from_number(word >> 1).filter(|_| word & 1 != 0);
        Some(error.map_or(Ok(word >> 1), Err))
    }

    /// The thread that began the read will not fetch its outcome.
    pub(crate) fn lose(&self, token: IoToken) {
        let held = token.number() << TOKEN_SHIFT | HELD;
        while !self.change(token.number(), ASKED, LOST) {
            let _ = self.fetch(token);
            // Another thread that deals with its end is about to say so.
            if self.word.load(Ordering::Relaxed) != held {
                return;
            }
            core::hint::spin_loop();
        }
    }

    /// Whether it is a read that has ended.
    pub(crate) fn has_ended(&self, token: IoToken) -> bool {
        self.word.load(Ordering::Acquire) == token.number() << TOKEN_SHIFT | ENDED
    }

    /// Makes room for another one.
    pub(crate) fn clear(&self) {
        self.word.store(0, Ordering::Release);
    }
}
