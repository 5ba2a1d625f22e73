//! The choice of the adapter for a command.

use super::args::AdapterArgs;
use super::terminal::Terminal;
use wgfc::model::device_error;
use wgfc::runtime::{AdapterChoice, Gpu};
use wgfc::{Error, Place};

/// The adapter that the options or `WGFC_ADAPTER` name, else the best one.
pub fn choice(a: &AdapterArgs) -> AdapterChoice {
    a.adapter.as_ref().map_or_else(AdapterChoice::from_env, |a| a.parse().unwrap_or_default())
}

/// Whether the options or `WGFC_ADAPTER` name an adapter.
fn is_named(a: &AdapterArgs) -> bool {
    a.adapter.is_some() || std::env::var("WGFC_ADAPTER").is_ok_and(|v| !v.trim().is_empty())
}

/// The adapter that is named, else the place where a model runs fastest.
pub fn place(a: &AdapterArgs) -> Place {
    match is_named(a) {
        true => Place::Device(choice(a)),
        false => Place::Any(AdapterChoice::Best),
    }
}

/// Opens the adapter that is named, else the best one.
pub fn open(a: &AdapterArgs, t: &Terminal) -> Result<Gpu, Error> {
    let gpu = Gpu::request_blocking(&choice(a)).map_err(device_error)?;
    say_software(&gpu, a, t);
    Ok(gpu)
}

/// Notes that the adapter is a software one, unless it is named.
pub fn say_software(gpu: &Gpu, a: &AdapterArgs, t: &Terminal) {
    let name = &gpu.summary().name;
    if gpu.summary().is_software && !is_named(a) {
        t.note(&format!("{name}, a software adapter, computes on the CPU: no GPU was found"));
    }
}
