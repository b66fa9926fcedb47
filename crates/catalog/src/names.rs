//! Checks of names against the served models: routes, notices of retirement, shadows. The configuration check and the
//! catalogue share this list. Must not know how a model is served.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use headrace_domain::ModelName;
use headrace_rollout::{ModelRoute, RouteArm, ShadowSpec};

use crate::notices::RetirementNotice;

/// Rules for the names of models, aliases and routes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NameRules {
    /// The names whose calls are copied, and how.
    pub shadows: BTreeMap<ModelName, Arc<ShadowSpec>>,
    /// The names that retire, and when.
    pub notices: BTreeMap<ModelName, RetirementNotice>,
    /// Answers to calls for an alias name the model that it led to, because the alias may lead to another model
    /// later.
    pub show_aliases: bool,
}

/// Whether a model of a given name is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelStatus {
    /// The model is served.
    Served,
    /// An upstream may list the model once it is asked.
    MayBeListed,
    /// The model is not served.
    Unknown,
}

/// A fault of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameFault {
    /// The alias, route or model with the fault.
    pub name: ModelName,
    /// A description of the fault that includes the name.
    pub why: String,
}

/// All faults of routes and of the rules for names. `status` says which models are served.
pub fn name_faults(
    status: &dyn Fn(&ModelName) -> ModelStatus,
    aliases: &BTreeMap<ModelName, ModelRoute>,
    rules: &NameRules,
) -> Vec<NameFault> {
    let mut names = NameChecker { status, aliases, faults: Vec::new() };
    aliases.iter().for_each(|(alias, route)| names.check_route(alias, route));
    rules.notices.iter().for_each(|(name, notice)| names.check_notice(name, notice));
    rules.shadows.iter().for_each(|(name, shadow)| names.check_shadow(name, shadow));
    names.faults
}

struct NameChecker<'a> {
    status: &'a dyn Fn(&ModelName) -> ModelStatus,
    aliases: &'a BTreeMap<ModelName, ModelRoute>,
    faults: Vec<NameFault>,
}

impl NameChecker<'_> {
    fn add(&mut self, name: &ModelName, why: String) {
        self.faults.push(NameFault { name: name.clone(), why });
    }

    fn is_model(&self, name: &ModelName) -> bool {
        (self.status)(name) != ModelStatus::Unknown
    }

    fn is_known(&self, name: &ModelName) -> bool {
        self.is_model(name) || self.aliases.contains_key(name)
    }

    fn check_route(&mut self, alias: &ModelName, route: &ModelRoute) {
        if (self.status)(alias) == ModelStatus::Served {
            self.add(alias, format!("`{alias}` has the name of a served model"));
        }
        if route.arms.iter().all(|arm| arm.weight == 0) {
            self.add(alias, format!("`{alias}` leads nowhere: give a model a weight above 0"));
        }
        let on_trial = |arm: &RouteArm| arm.weight == 0 || arm.canary.is_some();
        if route.arms.iter().any(|arm| arm.canary.is_some()) && route.arms.iter().all(on_trial) {
            let why = format!("`{alias}` has only canaries: give it a model that they are compared with");
            self.add(alias, why);
        }
        // A model may be in several lists of fallbacks.
        let unknown: BTreeSet<_> = route.models().filter(|target| !self.is_model(target)).collect();
        for target in unknown {
            let why = if self.aliases.contains_key(target) {
                format!(
                    "`{alias}` points to `{target}`, which is an alias or a route: name a model that is served"
                )
            } else {
                format!("`{alias}` points to `{target}`, which is not served")
            };
            self.add(alias, why);
        }
    }

    fn check_notice(&mut self, name: &ModelName, notice: &RetirementNotice) {
        if !self.is_known(name) {
            self.add(name, format!("`{name}` has a day on which it retires and is not served"));
        }
        match &notice.successor {
            Some(next) if next == name => self.add(name, format!("`{name}` is its own successor")),
            Some(next) if !self.is_known(next) => {
                self.add(name, format!("the successor of `{name}` is `{next}`, which is not served"));
            }
            None if notice.moves => {
                let why = format!("calls of `{name}` cannot move on when it retires: name its `successor`");
                self.add(name, why);
            }
            _ => {}
        }
    }

    fn check_shadow(&mut self, name: &ModelName, shadow: &ShadowSpec) {
        if !self.is_known(name) {
            self.add(name, format!("`{name}` has a shadow and is not served"));
        }
        if !self.is_model(&shadow.model) {
            let why = format!("the shadow of `{name}` is `{}`, which is not served", shadow.model);
            self.add(name, why);
        }
    }
}
