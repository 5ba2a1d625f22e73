//! Parameters, buffers and constants: views of the archive's storages.

use super::archive::{Archive, Layout, Part};
use super::messages::{self, SymInt, TensorMeta};
use super::pickle;
use crate::Diagnostic;
use crate::budget::Budget;
use crate::lower::OpError;
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;
use wgfc_ir::{DType, Dim, Poly, Tensor, Value};

/// The tensors of the archive, by name.
pub struct Weights<'m> {
    archive: Archive<'m>,
    graph_only: bool,
    /// The table of parameters and buffers, and the table of constants.
    tables: [BTreeMap<String, Stored>; 2],
    /// The constants that the graph already has, by record, first element, type and shape.
    made: HashMap<(Rc<str>, usize, DType, Vec<usize>), Value>,
    storages: HashMap<Rc<str>, Part>,
    /// The number of tensors that contain NaN, and the total number of NaN elements.
    pub nan: (usize, usize),
}

/// The table that a tensor is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// Parameters and buffers that are saved.
    State,
    /// Constants and buffers that are not saved.
    Constants,
}

/// A tensor of the archive: a view of a storage.
#[derive(Clone, Debug)]
struct Stored {
    /// The storage's record.
    record: Rc<str>,
    /// The name of the inner zip file that contains the record, if it is in one.
    inside: Option<Rc<str>>,
    /// The code of its element type.
    dtype: i64,
    /// The storage offset, in elements.
    offset: i64,
    sizes: Vec<i64>,
    strides: Vec<i64>,
    /// Whether it is a pickled object other than a plain tensor.
    pickled: bool,
}

/// The place of a tensor in its storage.
#[derive(Clone, Debug)]
pub struct Extent {
    /// The storage's record.
    pub record: Rc<str>,
    /// Its element type.
    pub dtype: DType,
    /// The range of bytes of the storage that it spans.
    pub bytes: std::ops::Range<usize>,
    /// Whether it is contiguous.
    pub in_order: bool,
}

/// A storage that an archive refers to.
#[derive(Clone, Debug)]
pub struct Storage {
    /// The name of its record, below the archive's root.
    pub record: String,
    /// The tensors in it.
    pub tensors: Vec<StoredTensor>,
}

/// A tensor in a storage.
#[derive(Clone, Debug)]
pub struct StoredTensor {
    /// The qualified name in the module.
    pub name: String,
    /// Its element type.
    pub dtype: DType,
    /// The storage offset, in elements.
    pub first: usize,
    /// The shape of its elements in memory.
    pub shape: Vec<usize>,
}

#[derive(Deserialize)]
struct Config {
    config: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
struct Entry {
    path_name: String,
    #[serde(default)]
    use_pickle: bool,
    #[serde(default)]
    tensor_meta: Option<TensorMeta>,
}

impl<'m> Weights<'m> {
    /// Reads the tables. With `graph_only` no storage is read.
    ///
    /// # Errors
    /// A table is missing, damaged or not understood.
    pub fn new(archive: Archive<'m>, graph_only: bool) -> Result<Weights<'m>, Diagnostic> {
        let mut tables = [BTreeMap::new(), BTreeMap::new()];
        let sources = [("weights", "serialized_state_dict.pt"), ("constants", "serialized_constants.pt")];
        for ((kind, flat), table) in sources.into_iter().zip(&mut tables) {
            let config = format!("data/{kind}/model_{kind}_config.json");
            let pickled = format!("data/{kind}/model.pt");
            let pickled = if archive.layout == Layout::Flat { flat.to_owned() } else { pickled };
            if archive.has(&config) {
                *table = configured(&archive, &config, &format!("data/{kind}"))?;
            } else if archive.has(&pickled) {
                *table = unpickled(&archive, &pickled)?;
            }
        }
        let made = HashMap::new();
        Ok(Weights { archive, graph_only, tables, made, storages: HashMap::new(), nan: (0, 0) })
    }

    /// The tensor of a name, as a value of the graph. Tensors with the same elements of one storage share a constant.
    ///
    /// # Errors
    /// The tensor is missing or not supported, or its storage is too short.
    pub fn value(
        &mut self,
        to: &mut crate::lower::Lowering,
        table: Table,
        name: &str,
    ) -> Result<Value, OpError> {
        let stored = self.find(table, name)?;
        let (base, index) = self.base(&stored)?;
        let key = (stored.record.clone(), base.first, base.dtype, base.shape.clone());
        let constant = match self.made.get(&key) {
            Some(v) => *v,
            None => {
                let tensor = self.read(&stored, &base)?;
                let v = to.constant(tensor);
                self.made.insert(key, v);
                v
            }
        };
        match index {
            None => Ok(constant),
            Some((shape, index)) => Ok(to.view(constant, shape, index)?),
        }
    }

    /// The tensor of a name with its elements in row-major order: the initial value of a state.
    ///
    /// # Errors
    /// See [`Weights::value`].
    pub fn tensor(&mut self, table: Table, name: &str) -> Result<Tensor, OpError> {
        let stored = self.find(table, name)?;
        let (base, index) = self.base(&stored)?;
        let tensor = self.read(&stored, &base)?;
        let Some((shape, index)) = index else { return Ok(tensor) };
        gathered(&tensor, &shape, &index, &self.archive.budget)
    }

    /// The place of the tensor of a name.
    ///
    /// # Errors
    /// The tensor is missing or not supported.
    pub fn extent(&self, table: Table, name: &str) -> Result<Extent, OpError> {
        let stored = self.find(table, name)?;
        let (base, index) = self.base(&stored)?;
        let elements: usize = base.shape.iter().product();
        let bytes =
            base.dtype.bytes_for(base.first)..base.dtype.bytes_for(base.first.saturating_add(elements));
        Ok(Extent { record: stored.record, dtype: base.dtype, bytes, in_order: index.is_none() })
    }

    /// The tensor of a name, as a view of the contiguous tensor `whole` that contains it.
    ///
    /// # Errors
    /// See [`Weights::value`].
    pub fn part(
        &self,
        to: &mut crate::lower::Lowering,
        (table, name): (Table, &str),
        (whole_table, whole_name): (Table, &str),
        whole: Value,
    ) -> Result<Value, OpError> {
        let (base, index) = self.base(&self.find(table, name)?)?;
        let (outer, _) = self.base(&self.find(whole_table, whole_name)?)?;
        let elements = |b: &Base| b.shape.iter().map(|n| Dim::from(*n)).product::<Dim>();
        let before = base.first.checked_sub(outer.first);
        let before =
            before.ok_or_else(|| OpError::internal("a part of a storage begins before the whole"))?;
        if before == 0 && base.shape == outer.shape && index.is_none() {
            // A second name of the whole.
            return Ok(whole);
        }
        let flat = to.reshape(whole, vec![elements(&outer)])?;
        let part = to.slice(flat, 0, &before.into(), 1, &elements(&base))?;
        let part = to.reshape(part, base.shape.iter().map(|n| (*n).into()).collect())?;
        match index {
            None => Ok(part),
            Some((shape, index)) => Ok(to.view(part, shape, index)?),
        }
    }

    /// The storages that are missing. Storages in inner zip files are not considered.
    ///
    /// # Errors
    /// A tensor has an impossible type, sizes or strides.
    pub fn missing(&self) -> Result<Vec<Storage>, Diagnostic> {
        let mut found: BTreeMap<Rc<str>, Vec<StoredTensor>> = BTreeMap::new();
        for (name, s) in self.tables.iter().flatten() {
            if s.pickled
                || s.inside.is_some()
                || !found.contains_key(&s.record) && self.archive.has(&s.record)
            {
                continue;
            }
            let (base, _) = self.base(s).map_err(|e| {
                let d = Diagnostic::model(format!("the tensor `{name}`: {}", e.message));
                d.help(e.help.unwrap_or_else(|| "save the archive again".into()))
            })?;
            let Base { dtype, first, shape } = base;
            let tensor = StoredTensor { name: name.clone(), dtype, first, shape };
            found.entry(s.record.clone()).or_default().push(tensor);
        }
        let storage = |(record, tensors): (Rc<str>, _)| Storage { record: record.to_string(), tensors };
        Ok(found.into_iter().map(storage).collect())
    }

    fn find(&self, table: Table, name: &str) -> Result<Stored, OpError> {
        // Buffers that are not saved are among the constants; older versions do not mark them, so both tables are searched.
        let order = if table == Table::State { [0, 1] } else { [1, 0] };
        let found = order.into_iter().find_map(|t| self.tables[t].get(name));
        let stored = found.ok_or_else(|| {
            OpError::model(format!("the archive has no entry for the weight `{name}`"))
                .help("save the program again with torch.export.save")
        })?;
        if stored.pickled {
            return Err(OpError::unsupported(
                "it is a tensor subclass, stored as a pickle, which is not executed",
                "call run_decompositions() before saving: this replaces such tensors by plain ones",
            ));
        }
        Ok(stored.clone())
    }

    /// The dense tensor that a stored one is a view of, and the view; `None` if they are the same.
    fn base(&self, s: &Stored) -> Result<(Base, Option<View>), OpError> {
        let dtype = messages::dtype(s.dtype).map_err(|e| {
            OpError::unsupported(format!("elements of type {e}"), "convert it before exporting")
        })?;
        let complex = messages::is_complex(s.dtype);
        let negative =
            || OpError::model(format!("sizes {:?} and strides {:?} are not possible", s.sizes, s.strides));
        let sizes = s.sizes.iter().map(|n| usize::try_from(*n)).collect::<Result<Vec<_>, _>>();
        let strides = s.strides.iter().map(|n| usize::try_from(*n)).collect::<Result<Vec<_>, _>>();
        let (Ok(mut sizes), Ok(mut strides), Ok(mut first)) = (sizes, strides, usize::try_from(s.offset))
        else {
            return Err(negative());
        };
        if sizes.len() != strides.len() || wgfc_ir::tensor::checked_numel(&sizes).is_none() {
            return Err(negative());
        }
        if complex {
            strides.iter_mut().for_each(|s| *s = s.saturating_mul(2));
            first = first.saturating_mul(2);
            sizes.push(2);
            strides.push(1);
        }
        let shape: Vec<Dim> = sizes.iter().map(|n| (*n).into()).collect();
        // The stride of an axis of extent 1 is irrelevant.
        let mut order: Vec<usize> = (0..sizes.len()).filter(|d| sizes[*d] != 1).collect();
        order.sort_by_key(|d| std::cmp::Reverse(strides[*d]));
        let dense = order
            .iter()
            .rev()
            .try_fold(1usize, |n, d| (strides[*d] == n).then(|| n.checked_mul(sizes[*d])).flatten());
        let base = |shape: Vec<usize>| Base { dtype, first, shape };
        if sizes.contains(&0) || dense.is_some() && order.is_sorted() {
            return Ok((base(sizes), None));
        }
        if dense.is_some() {
            let mut index = vec![];
            for d in &order {
                index.push(Poly::var(*d));
            }
            return Ok((base(order.iter().map(|d| sizes[*d]).collect()), Some((shape, index))));
        }
        let span = sizes
            .iter()
            .zip(&strides)
            .try_fold(1usize, |n, (size, stride)| n.checked_add((size - 1).checked_mul(*stride)?));
        let span = span.ok_or_else(negative)?;
        let place = |d: usize| Some(&Poly::var(d) * &Poly::constant(i64::try_from(strides[d]).ok()?));
        let place = (0..sizes.len()).map(place).collect::<Option<Vec<Poly>>>().ok_or_else(negative)?;
        Ok((base(vec![span]), Some((shape, vec![place.into_iter().sum()]))))
    }

    fn read(&mut self, s: &Stored, base: &Base) -> Result<Tensor, OpError> {
        if self.graph_only {
            return Ok(Tensor::absent(base.dtype, base.shape.clone()));
        }
        let storage = self.opened(s)?;
        let elements: usize = base.shape.iter().product();
        let (start, need) = (base.dtype.bytes_for(base.first), base.dtype.bytes_for(elements));
        if start.checked_add(need).is_none_or(|end| end > storage.len) {
            return Err(OpError::model(format!(
                "its {need} bytes from {start} are outside of its storage `{}`, which has {}",
                s.record, storage.len
            ))
            .help("the archive was cut short, or changed: save it again"));
        }
        let tensor =
            Tensor::shared(base.dtype, base.shape.clone(), storage.owner, storage.start + start, need)?;
        let nan = tensor.bytes().map_or(0, |b| wgfc_ir::nan::count_nan(base.dtype, b));
        if nan > 0 {
            self.nan = (self.nan.0 + 1, self.nan.1 + nan);
        }
        Ok(tensor)
    }

    fn opened(&mut self, s: &Stored) -> Result<Part, OpError> {
        if let Some(part) = self.storages.get(&s.record) {
            return Ok(part.clone());
        }
        let part = match &s.inside {
            None => self.archive.storage(&s.record).map_err(of)?,
            Some(zip) => {
                let name = s.record.strip_prefix(&format!("{zip}/")).unwrap_or(&s.record);
                self.archive.inner(zip).and_then(|a| a.storage(name)).map_err(of)?
            }
        };
        self.storages.insert(s.record.clone(), part.clone());
        Ok(part)
    }
}

/// A dense tensor within a storage.
struct Base {
    dtype: DType,
    /// The storage offset, in elements.
    first: usize,
    shape: Vec<usize>,
}

type View = (Vec<Dim>, Vec<Poly>);

/// Converts an error of the archive to one about a tensor.
fn of(d: Diagnostic) -> OpError {
    OpError { help: d.help, ..OpError::model(d.message) }
}

/// Copies the elements of a view in row-major order.
fn gathered(t: &Tensor, shape: &[Dim], index: &[Poly], budget: &Budget) -> Result<Tensor, OpError> {
    let sizes: Vec<usize> = shape.iter().filter_map(|d| usize::try_from(d.as_const()?).ok()).collect();
    if !t.is_present() {
        return Ok(Tensor::absent(t.dtype, sizes));
    }
    let n: usize = sizes.iter().product();
    let bytes = t.bytes().filter(|_| t.dtype.bits() >= 8);
    let bytes = bytes.ok_or_else(|| OpError::unsupported("the view is too large", "make it contiguous"))?;
    let width = t.dtype.bits() / 8;
    let size = t.dtype.bytes_of(n as u64);
    budget
        .take(size, format_args!("a copy of {}{sizes:?} with its elements in order", t.dtype))
        .map_err(of)?;
    let out_of_it = || OpError::internal("a view reaches outside of its weight");
    // The flat position of the element whose index is 1 along the axis `one` and 0 along all others. The index map is affine, so these
    // positions determine the strides.
    let place = |one: usize| {
        let value = |a: &wgfc_ir::Atom| match a {
            wgfc_ir::Atom::Var(d) => Some(i64::from(*d as usize == one)),
            _ => None,
        };
        let at = index.iter().zip(&t.shape).try_fold(0usize, |flat, (p, extent)| {
            flat.checked_mul(*extent)?.checked_add(usize::try_from(p.eval(&value)?).ok()?)
        });
        at.ok_or_else(out_of_it)
    };
    let first = place(usize::MAX)?;
    let strides = (0..sizes.len()).map(|d| Ok(place(d)? - first)).collect::<Result<Vec<usize>, OpError>>()?;
    let (row, stride) = sizes.last().zip(strides.last()).map_or((1, 0), |(n, s)| (*n, *s));
    let mut out = vec![];
    let length = n.checked_mul(width).filter(|l| out.try_reserve_exact(*l).is_ok());
    let length = length.ok_or_else(|| OpError::model(format!("there is no memory for {size} bytes")))?;
    let mut at = vec![0; sizes.len().saturating_sub(1)];
    for _ in 0..n.checked_div(row).unwrap_or(0) {
        let start: usize = first + at.iter().zip(&strides).map(|(i, s)| i * s).sum::<usize>();
        for i in 0..row {
            let from = (start + i * stride) * width;
            out.extend_from_slice(bytes.get(from..from + width).ok_or_else(out_of_it)?);
        }
        for d in (0..at.len()).rev() {
            at[d] += 1;
            if at[d] < sizes[d] {
                break;
            }
            at[d] = 0;
        }
    }
    Ok(Tensor::shared(t.dtype, sizes, Arc::new(out), 0, length)?)
}

/// Reads a table from a JSON record.
fn configured(a: &Archive<'_>, name: &str, folder: &str) -> Result<BTreeMap<String, Stored>, Diagnostic> {
    let unread = |e| Diagnostic::model(format!("`{name}` is not understood: {}", crate::json_in_words(&e)));
    let config: Config = a.json(&a.text(name)?, unread)?;
    let mut table = BTreeMap::new();
    for (weight, entry) in config.config {
        let number = |s: &SymInt| if let SymInt::Int(n) = s { Some(*n) } else { None };
        let numbers = |s: &[SymInt]| s.iter().map(number).collect::<Option<Vec<i64>>>();
        let meta = entry.tensor_meta.as_ref();
        let sizes = meta.and_then(|m| numbers(&m.sizes));
        let strides = meta.and_then(|m| numbers(&m.strides));
        let inside = entry.path_name.split('/').all(|p| p != "..") && !entry.path_name.starts_with('/');
        // An entry without tensor metadata is treated like a pickled one: an error when it is used.
        let plain = !entry.use_pickle && inside && sizes.is_some() && strides.is_some();
        let stored = Stored {
            record: format!("{folder}/{}", entry.path_name).into(),
            inside: None,
            dtype: meta.map_or(0, |m| m.dtype),
            offset: meta.and_then(|m| m.storage_offset.as_ref()).and_then(number).unwrap_or(0),
            sizes: sizes.unwrap_or_default(),
            strides: strides.unwrap_or_default(),
            pickled: !plain,
        };
        table.insert(weight, stored);
    }
    Ok(table)
}

/// Reads a table from a pickle in an inner zip file.
fn unpickled(a: &Archive<'_>, name: &str) -> Result<BTreeMap<String, Stored>, Diagnostic> {
    // Some versions write an empty record for an empty table.
    if a.storage(name)?.len == 0 {
        return Ok(BTreeMap::new());
    }
    let inner = a.inner(name)?;
    let pickle = inner.text("data.pkl")?;
    let views = pickle::tensors(pickle.bytes(), &a.budget).map_err(|mut d| {
        d.message = format!("`{name}`: {}", d.message);
        d.help.get_or_insert_with(|| "save the program again with torch 2.9 or later".into());
        d
    })?;
    let stored = |v: pickle::View| {
        Some(Stored {
            record: format!("{name}/data/{}", v.key).into(),
            inside: Some(name.into()),
            dtype: storage_class(&v.class),
            offset: v.offset,
            sizes: v.sizes,
            strides: v.strides,
            pickled: false,
        })
    };
    Ok(views.into_iter().filter_map(|(n, v)| Some((n, stored(v)?))).collect())
}

/// The code of the element type of a storage class.
fn storage_class(class: &str) -> i64 {
    match class.strip_suffix("Storage").unwrap_or(class) {
        "Byte" => 1,
        "Char" => 2,
        "Short" => 3,
        "Int" => 4,
        "Long" => 5,
        "Half" => 6,
        "Float" => 7,
        "Double" => 8,
        "ComplexFloat" => 10,
        "ComplexDouble" => 11,
        "Bool" => 12,
        "BFloat16" => 13,
        _ => 0,
    }
}
