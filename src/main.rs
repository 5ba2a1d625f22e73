//! The command line `wgfc`; see `wgfc --help`.

fn main() {
    quieten_drivers();
    wgfc::cli::main(std::env::args_os());
}

/// Disables Mesa's device-selection layer, which asks the desktop for its graphics card at each start of Vulkan and prints
/// complaints to stderr if there is no desktop.
fn quieten_drivers() {
    if cfg!(target_os = "linux") && std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        // SAFETY: no other thread runs yet.
        unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
    }
}
