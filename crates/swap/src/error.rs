//! Errors, one for each cause.

use quire_frame::AllocError;

/// Why a device was not taken into use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SwapOnError {
    /// It has its memory on another machine.
    #[error("the device has its memory on another machine")]
    OtherMachine,
    /// It has no slots.
    #[error("the device has no slots")]
    TooSmall,
    /// It has more slots than can be described.
    #[error("the device has too many slots")]
    TooLarge,
    /// There are [`MAX_DEVICES`](crate::MAX_DEVICES) already.
    #[error("there are too many devices")]
    TooManyDevices,
    /// There is no memory for its metadata.
    #[error("{0}")]
    NoMemory(AllocError),
}

/// Why a folio got no slots. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoSlots {
    /// No slot is free, or there is no device.
    #[error("no slot is free")]
    Full,
    /// Enough slots are not free contiguously: the folio has to be split.
    #[error("there is no room for a folio of that order")]
    WrongOrder,
    /// There is no frame for the words of a cluster.
    #[error("no memory for the words of a cluster")]
    NoMemory,
    /// The memcg is at its swap limit.
    #[error("the memcg is at its swap limit")]
    Limit,
}

/// Slots of the device are in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{slots} slots are in use")]
pub struct StillUsed {
    /// How many.
    pub slots: u64,
}

/// A word could not be split for lack of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no memory for the words of a cluster")]
pub struct NoTable;
