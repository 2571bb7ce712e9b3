//! Flush requests on their way to a vCPU.

use quire_arch::TlbFlush;

/// Requests that a mailbox holds one by one. A vCPU rarely has more than one initiator at a time.
pub(crate) const CAPACITY: usize = 8;

/// A bounded list of requests. When it is full, it stands for "flush everything", which covers whatever else
/// comes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mailbox {
    requests: [TlbFlush; CAPACITY],
    len: usize,
}

impl Default for Mailbox {
    fn default() -> Self {
        Self { requests: [TlbFlush::All; CAPACITY], len: 0 }
    }
}

impl Mailbox {
    /// Adds a request and returns whether it still had a place of its own.
    pub(crate) fn push(&mut self, flush: TlbFlush) -> bool {
        if self.len < CAPACITY {
            self.requests[self.len] = flush;
            self.len += 1;
            return true;
        }
        self.requests[0] = TlbFlush::All;
        self.len = CAPACITY;
        false
    }

    /// Empties the mailbox.
    pub(crate) fn take(&mut self) -> Self {
        core::mem::take(self)
    }

    /// The requests, oldest first.
    pub(crate) fn requests(&self) -> &[TlbFlush] {
        &self.requests[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_arch::Asid;

    #[test]
    fn a_full_mailbox_flushes_everything() {
        let mut mailbox = Mailbox::default();
        for asid in 0..CAPACITY as u32 {
            assert!(mailbox.push(TlbFlush::Space { asid: Asid(asid) }));
        }
        assert!(!mailbox.requests().contains(&TlbFlush::All));
        assert!(!mailbox.push(TlbFlush::Space { asid: Asid(99) }));
        assert!(mailbox.requests().contains(&TlbFlush::All));
        assert_eq!(mailbox.take().requests().len(), CAPACITY);
        assert!(mailbox.requests().is_empty());
    }
}
