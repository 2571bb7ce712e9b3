//! Names of memcgs.

use crate::error::MemcgError;
use core::sync::atomic::{AtomicU8, Ordering};

/// The longest name, in bytes.
pub const MAX_NAME: usize = 64;

/// The name of a memcg, written and read under the lock of the memcgs.
#[derive(Debug)]
pub(crate) struct Name {
    bytes: [AtomicU8; MAX_NAME],
    len: AtomicU8,
}

impl Default for Name {
    fn default() -> Self {
        Self { bytes: [const { AtomicU8::new(0) }; MAX_NAME], len: AtomicU8::new(0) }
    }
}

impl Name {
    /// Whether a memcg can be called `name`.
    pub(crate) fn check(name: &str) -> Result<(), MemcgError> {
        let fits = (1..=MAX_NAME).contains(&name.len()) && name != "." && name != "..";
        if fits && !name.contains(['/', '\n', '\0']) { Ok(()) } else { Err(MemcgError::BadName) }
    }

    /// Stores a name that was checked.
    pub(crate) fn set(&self, name: &str) {
        for (place, &byte) in self.bytes.iter().zip(name.as_bytes()) {
            place.store(byte, Ordering::Relaxed);
        }
        self.len.store(name.len() as u8, Ordering::Relaxed);
    }

    /// The stored name.
    pub(crate) fn bytes(&self) -> impl Iterator<Item = u8> {
        let len = usize::from(self.len.load(Ordering::Relaxed));
        self.bytes.iter().take(len).map(|byte| byte.load(Ordering::Relaxed))
    }

    pub(crate) fn is(&self, name: &str) -> bool {
        self.bytes().eq(name.bytes())
    }
}
