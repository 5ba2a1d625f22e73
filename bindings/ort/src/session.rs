//! Models behind the interface.

use crate::tensor::{Type, Value};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::path::Path;
use std::sync::{Arc, Mutex};
use wgfc::runtime::AdapterChoice;
use wgfc::value_info::ValueInfo;
use wgfc::{Error, Fusion, Model, ModelFile, Options, Place};

/// The options of a session that have an effect.
#[derive(Clone, Default)]
pub(crate) struct SessionOptions {
    pub(crate) unfused: bool,
    pub(crate) dims: BTreeMap<String, i64>,
    /// The value of the entry `wgfc.adapter`.
    pub(crate) adapter: Option<String>,
}

/// The value of `wgfc.adapter` for the reference evaluator.
const EVALUATOR: &str = "cpu-evaluator";

impl SessionOptions {
    fn options(&self) -> Options {
        let fusion = if self.unfused { Fusion::None } else { Fusion::Full };
        Options { fusion, dims: self.dims.clone(), ..Options::default() }
    }
    fn place(&self) -> Place {
        match self.adapter.as_deref() {
            None => Place::default(),
            Some(EVALUATOR) => Place::Cpu,
            Some(name) => Place::Device(name.parse::<AdapterChoice>().unwrap_or_default()),
        }
    }
}

/// An input or output.
pub(crate) struct Port {
    pub(crate) name: CString,
    pub(crate) ty: Type,
}

/// A model that is ready to run.
pub(crate) struct Session {
    pub(crate) inputs: Vec<Port>,
    pub(crate) outputs: Vec<Port>,
    model: Mutex<Model>,
}

impl Session {
    pub(crate) fn open(path: &Path, options: &SessionOptions) -> Result<Session, Error> {
        Ok(Session::of(Model::load(path, &options.options(), options.place())?))
    }

    pub(crate) fn of_bytes(bytes: Vec<u8>, options: &SessionOptions) -> Result<Session, Error> {
        let file = ModelFile::of_bytes(Arc::new(bytes));
        Ok(Session::of(Model::compile(&file, &options.options(), options.place())?))
    }

    fn of(model: Model) -> Session {
        let port = |p: &ValueInfo| Port {
            name: CString::new(p.name.replace('\0', " ")).unwrap_or_default(),
            ty: Type::of_port(p),
        };
        let (inputs, outputs) =
            (model.inputs().iter().map(port).collect(), model.outputs().iter().map(port).collect());
        Session { inputs, outputs, model: Mutex::new(model) }
    }

    /// Runs the model and writes the named outputs to the values in `outputs`, where null pointers are replaced by new values.
    ///
    /// # Safety
    /// The pointers in `outputs` are null or values that nothing else uses.
    pub(crate) unsafe fn run(
        &self,
        inputs: &[(String, &Value)],
        names: &[String],
        outputs: &mut [*mut Value],
    ) -> Result<(), String> {
        let mut given = BTreeMap::new();
        for (name, value) in inputs {
            given.insert(name.clone(), value.tensor().map_err(|e| format!("input \"{name}\": {e}"))?);
        }
        let mut model = self.model.lock().map_err(|_| "an earlier run panicked: open the session again")?;
        let all = model.run(&given).map_err(|e| e.to_string())?;
        drop(model);
        let mut made: Vec<Option<Value>> = vec![];
        for (name, out) in names.iter().zip(outputs.iter()) {
            let tensor = all.get(name).ok_or_else(|| format!("there is no output \"{name}\""))?;
            // SAFETY: it is null or a value that nothing else uses.
            let into = unsafe { out.as_mut() };
            made.push(match into {
                Some(value) => {
                    value.fill(tensor).map_err(|e| format!("output \"{name}\": {e}"))?;
                    None
                }
                None => Some(Value::of(tensor)?),
            });
        }
        for (out, value) in outputs.iter_mut().zip(made) {
            if let Some(value) = value {
                *out = Box::into_raw(Box::new(value));
            }
        }
        Ok(())
    }
}

/// `ort` moves sessions between threads and shares them.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Session>();
};
