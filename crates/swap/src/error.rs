//! What can go wrong, each cause apart.

use core::fmt;
use quire_frame::AllocError;

/// Why a device was not taken into use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SwapOnError {
    /// It has no slots.
    TooSmall,
    /// It has more slots than can be described.
    TooLarge,
    /// There are [`MAX_DEVICES`](crate::MAX_DEVICES) already.
    TooManyDevices,
    /// There is no memory for what has to be known about it.
    NoMemory(AllocError),
}

impl fmt::Display for SwapOnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooSmall => f.write_str("the device has no slots"),
            Self::TooLarge => f.write_str("the device has too many slots"),
            Self::TooManyDevices => f.write_str("there are too many devices"),
            Self::NoMemory(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for SwapOnError {}

/// Why a folio got no slots. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoSlots {
    /// No slot is free, or there is no device.
    Full,
    /// Slots are free, but not so many in one place: the folio is to be split.
    WrongOrder,
    /// There is no frame for the words of a cluster.
    NoMemory,
    /// The memcg may have no more.
    Limit,
}

impl fmt::Display for NoSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "no slot is free",
            Self::WrongOrder => "there is no room for a folio of that order",
            Self::NoMemory => "no memory for the words of a cluster",
            Self::Limit => "the memcg has its share of slots",
        })
    }
}

impl core::error::Error for NoSlots {}

/// Slots of the device are in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StillUsed {
    /// How many.
    pub slots: u64,
}

impl fmt::Display for StillUsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} slots are in use", self.slots)
    }
}

impl core::error::Error for StillUsed {}

/// A word could not be split for want of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoTable;

impl fmt::Display for NoTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no memory for the words of a cluster")
    }
}

impl core::error::Error for NoTable {}
