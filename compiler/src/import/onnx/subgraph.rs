//! Graphs inside of nodes: branches, and bodies of loops.

use super::cx::Cx;
use super::messages::{GraphProto, NodeProto};
use super::names::{Scope, Slot, free_names, operator, result};
use super::op::{Lowered, OpError};
use crate::lower::Lowering;
use crate::lower::control::{Body, Param};
use crate::{Diagnostic, Location};
use wgfc_ir::{Graph, Op, Value};

/// Branches and bodies of loops that may be inside of one another; programs repeat dispatches no deeper.
const MAX_BODIES: usize = 8;

/// What a loop's iteration number is captured as, which no value of a model is called.
const ITERATION: &str = "\0iteration";

impl Cx<'_, '_, '_> {
    /// Lowers the nodes of a subgraph in place, as if they stood where this node does. `inputs` are its
    /// parameters' values. Returns its outputs.
    pub fn inline_graph(&mut self, graph: &GraphProto, inputs: &[Value]) -> Lowered {
        let mut scope = self.scope.clone();
        for (formal, v) in graph.input.iter().zip(inputs) {
            scope.values.insert(formal.name.clone(), Slot::Made(*v));
        }
        let prefix = format!("{}/", self.origin.first().cloned().unwrap_or_default());
        self.importer.initializers(self.lowering, &mut scope, graph);
        self.importer.nodes(self.lowering, &mut scope, &graph.node, &prefix);
        graph.output.iter().map(|o| result(&scope, &o.name)).collect()
    }

    /// Imports a subgraph as a graph of its own, whose inputs are its parameters and then what it
    /// captures; `captures` grows by what is new to it, by name and value. Constants are copied, not
    /// captured.
    pub fn subgraph(
        &mut self,
        graph: &GraphProto,
        params: &[Param],
        captures: &mut Vec<(String, Value)>,
    ) -> Result<Body, OpError> {
        if self.importer.bodies >= MAX_BODIES {
            let what = "branches and bodies of loops are nested more than";
            let d = Diagnostic::unsupported(format!("{what} {MAX_BODIES} deep"))
                .help("compute inner loops of a fixed number of steps without a loop");
            let at = Location {
                node: self.origin.first().cloned(),
                operator: Some(operator(self.node).into()),
                opset: Some(self.opset),
                part: None,
                source: None,
            };
            self.importer.stop(d.at(at));
            return Err(OpError::reported());
        }
        // Behind the body's own inputs there may be the iteration.
        let own = params.iter().take_while(|p| !p.hidden).count();
        if graph.input.len() != own {
            return Err(OpError::model(format!(
                "its subgraph \"{}\" has {} inputs, and is given {}",
                graph.name,
                graph.input.len(),
                own
            )));
        }
        let mut g = Graph::new();
        let mut to = Lowering::body(&mut g);
        to.at(self.lowering.place());
        let mut scope = Scope::default();
        let formals = graph.input.iter().map(|i| i.name.as_str()).chain(std::iter::repeat("iteration"));
        let mut iteration = None;
        for (formal, param) in formals.zip(params) {
            let v = to.graph.add_input(formal, param.ty.clone());
            if param.iteration {
                iteration = Some(v);
            }
            if let Some(d) = &param.known {
                to.set_dims(v, d);
            }
            if !param.hidden {
                scope.values.insert(formal.to_owned(), Slot::Made(v));
            }
        }
        let mut names: Vec<String> = captures.iter().map(|c| c.0.clone()).collect();
        let known = names.len();
        for name in free_names(graph) {
            if !names.iter().any(|n| n == name) {
                names.push(name.to_owned());
            }
        }
        if self.lowering.iteration.is_some() && draws(graph) && !names.iter().any(|n| n == ITERATION) {
            names.push(ITERATION.to_owned());
        }
        for (i, name) in names.into_iter().enumerate() {
            let outer = match self.scope.values.get(&name) {
                Some(Slot::Made(v)) => Some(*v),
                _ => self.lowering.iteration.filter(|_| name == ITERATION),
            };
            let Some(v) = outer else {
                return Err(OpError::model(format!("nothing makes \"{name}\", which its subgraph reads")));
            };
            let outer = self.lowering.graph.node(v.node);
            let pure = outer.inputs.is_empty() && !matches!(outer.op, Op::Input);
            let inner = if pure && i >= known {
                Value { node: to.graph.add_node(outer.clone()), port: v.port }
            } else {
                if i >= known {
                    captures.push((name.clone(), v));
                }
                to.graph.add_input(&name, self.lowering.ty(v).clone())
            };
            if let Some(d) = self.lowering.dims(v) {
                to.set_dims(inner, &d);
            }
            if name == ITERATION {
                to.iteration = Some(inner);
            } else {
                scope.values.insert(name, Slot::Made(inner));
            }
        }
        if let Some(own) = iteration {
            to.number_iterations(own)?;
        }
        let prefix = format!("{}/", self.origin.first().cloned().unwrap_or_default());
        self.importer.bodies += 1;
        self.importer.initializers(&mut to, &mut scope, graph);
        self.importer.nodes(&mut to, &mut scope, &graph.node, &prefix);
        self.importer.bodies -= 1;
        let notes = to.finish();
        let eval = self.lowering.absorb(notes);
        for o in &graph.output {
            let value = result(&scope, &o.name)?;
            g.outputs.push(wgfc_ir::Border { name: o.name.as_str().into(), value });
        }
        Ok(Body { graph: g, eval })
    }
}

/// Whether a subgraph draws random numbers.
pub(super) fn draws(g: &GraphProto) -> bool {
    const GENERATORS: [&str; 7] = [
        "Bernoulli",
        "Dropout",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    ];
    let inner = |n: &NodeProto| n.attribute.iter().filter_map(|a| a.g.as_ref()).any(draws);
    g.node.iter().any(|n| GENERATORS.contains(&n.op_type.as_str()) || inner(n))
}
