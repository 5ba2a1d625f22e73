//! Graphs in attributes of nodes: branches, and bodies of loops.

use super::cx::Cx;
use super::messages::{GraphProto, NodeProto};
use super::names::{Scope, Slot, domain_key, free_names, operator, result};
use super::op::{Lowered, OpError};
use crate::lower::Lowering;
use crate::lower::control::{Body, Param};
use crate::lower::random::run_key;
use crate::{Diagnostic, Location};
use std::collections::HashSet;
use wgfc_ir::{Graph, Op, Value};

/// The maximum nesting depth of branches and loop bodies, which is also that of repeated dispatches in programs.
const MAX_BODIES: usize = 8;

/// The name under which a loop's iteration number is captured; it differs from all names of values in models.
const ITERATION: &str = "\0iteration";
/// The name under which the key of a run's random numbers is captured.
const RUN_KEY: &str = "\0run key";

impl Cx<'_, '_, '_> {
    /// Lowers the nodes of a subgraph in place of this node. `inputs` are the values of its parameters. Returns its outputs.
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

    /// Imports a subgraph as a separate graph, whose inputs are its parameters and then its captures. New captures are appended to
    /// `captures`, by name and value. Constants are copied instead of captured.
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
        // The hidden iteration number may follow the body's own inputs.
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
        let draws = self.draws(graph);
        if draws.unseeded {
            run_key(self.lowering)?;
        }
        let hidden = [
            (ITERATION, self.lowering.iteration.filter(|_| draws.any)),
            (RUN_KEY, self.lowering.run_key.filter(|_| draws.unseeded)),
        ];
        for (name, _) in hidden.iter().filter(|(_, v)| v.is_some()) {
            if !names.iter().any(|n| n == name) {
                names.push((*name).to_owned());
            }
        }
        for (i, name) in names.into_iter().enumerate() {
            let outer = match self.scope.values.get(&name) {
                Some(Slot::Made(v)) => Some(*v),
                _ => [(ITERATION, self.lowering.iteration), (RUN_KEY, self.lowering.run_key)]
                    .into_iter()
                    .find_map(|(n, v)| v.filter(|_| n == name)),
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
            match name.as_str() {
                ITERATION => to.iteration = Some(inner),
                RUN_KEY => to.run_key = Some(inner),
                _ => {
                    scope.values.insert(name, Slot::Made(inner));
                }
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

/// The kinds of random numbers that nodes draw.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Draws {
    /// Whether any are drawn.
    pub any: bool,
    /// Whether some are drawn by a node without attribute `seed`.
    pub unseeded: bool,
}

impl Cx<'_, '_, '_> {
    /// The draws of a subgraph and of the functions that it calls.
    pub(super) fn draws(&self, graph: &GraphProto) -> Draws {
        const GENERATORS: [&str; 7] = [
            "Bernoulli",
            "Dropout",
            "Multinomial",
            "RandomNormal",
            "RandomNormalLike",
            "RandomUniform",
            "RandomUniformLike",
        ];
        let mut found = Draws::default();
        let mut open: Vec<&[NodeProto]> = vec![&graph.node];
        let mut called = HashSet::new();
        while let Some(nodes) = open.pop() {
            for n in nodes {
                open.extend(n.attribute.iter().filter_map(|a| a.g.as_ref()).map(|g| &g.node[..]));
                let key = (domain_key(&n.domain), n.op_type.as_str(), n.overload.as_str());
                if let Some(f) = self.importer.functions.get(&key).filter(|f| called.insert(&raw const ***f))
                {
                    open.push(&f.node);
                }
                // Dropout is random only with a third input, the training mode.
                let trains = n.op_type != "Dropout" || n.input.get(2).is_some_and(|i| !i.is_empty());
                if GENERATORS.contains(&n.op_type.as_str()) && trains {
                    found.any = true;
                    found.unseeded |= !n.attribute.iter().any(|a| a.name == "seed");
                }
            }
        }
        found
    }
}
