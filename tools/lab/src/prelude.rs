//! The words that experiments are written in.

pub(crate) use crate::clock::now;
pub(crate) use crate::error::{Done, LabError};
pub(crate) use crate::folios::{Folios, pages};
pub(crate) use crate::lab::{Experiment, Lab, Outcome, Rounds, Row, Terms};
pub(crate) use crate::process::{Job, Process, Quire};
pub(crate) use crate::rounds::{RoundFigures, Series, round_figures};
pub(crate) use crate::scale::{GIB, KIB, MIB};
pub(crate) use crate::site::{HostSpace, Site};
pub(crate) use quire_arch::{Access, Order, PAGE_SIZE, Pin, Platform};
pub(crate) use quire_host::HostPlatform;
pub(crate) use quire_mm::{Techniques, space::Advice};
