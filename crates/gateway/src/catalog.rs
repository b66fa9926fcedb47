//! What may change while calls run: models, their names, prices, workers, rules, shares. A catalogue never changes; another one
//! takes its place, whole, and each call keeps the one that it was routed by. Knows no call, and no file.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use headrace_domain::{Code, ModelName, OrgId, Region, Residency, Stage, UnixNanos};
use headrace_fleet::Fleet;
use headrace_ledger::prices::{CostList, PriceList};
use headrace_limits::LimitSpec;
use headrace_moderation::Judge;

use crate::canary::{CanaryView, Trial, Trials, Watch};
use crate::lane::Lane;
use crate::names::{ModelStatus, NameRules, name_faults};
use crate::notices::Notice;
use crate::policy::Policy;
use crate::routes::{Arm, Asker, Draw, Fallbacks, Route};
use crate::shadows::ShadowSpec;

/// Names that a call moves on over, one after the other.
const MOST_MOVES: usize = 8;

/// A model as the gateway knows it.
#[derive(Clone)]
pub struct ServedModel {
    /// The name it is served under.
    pub name: ModelName,
    /// In what terms it is spoken to.
    pub lane: Lane,
    /// When it was made, seconds since 1970; shown as `created`.
    pub created_unix_s: u64,
    /// Length of an answer whose caller names none; `None`: the gateway's.
    pub default_max_tokens: Option<u32>,
    /// Limits over all callers together.
    pub limits: LimitSpec,
    /// What is done where a worker of its is lost or slow.
    pub policy: Policy,
}

/// What a catalogue is made of.
pub struct Offer {
    /// What is served.
    pub models: Vec<Arc<ServedModel>>,
    /// Further names, and what they lead to.
    pub aliases: BTreeMap<ModelName, Route>,
    /// What tokens cost.
    pub prices: PriceList,
    /// What others charge us for theirs.
    pub costs: CostList,
    /// Who computes.
    pub fleet: Arc<Fleet>,
    /// Rules on content; `None` switches the stage off.
    pub judge: Option<Arc<dyn Judge>>,
    /// Shares of an engine, relative to the 1 of every organisation that is not named.
    pub weights: BTreeMap<OrgId, u32>,
    /// What holds for names beside what they lead to.
    pub names: NameRules,
}

/// What is on offer now.
pub struct Catalog {
    models: HashMap<ModelName, Arc<ServedModel>>,
    aliases: BTreeMap<ModelName, Route>,
    prices: PriceList,
    costs: CostList,
    fleet: Arc<Fleet>,
    judge: Option<Arc<dyn Judge>>,
    weights: BTreeMap<OrgId, u32>,
    rules: NameRules,
    /// What is seen of models on trial, by their route.
    trials: BTreeMap<ModelName, Trials>,
    /// What a body says decides which model takes it, or how it is read: some model is spoken to in messages, or some name leads
    /// to several.
    looks: bool,
    /// Some model costs nothing, so that an empty balance is no reason to turn a caller away early.
    free_model: bool,
}

impl Catalog {
    /// Every served model must have workers and a price, every alias a model.
    ///
    /// # Errors
    /// Every fault at once.
    pub fn checked(offer: Offer, now: UnixNanos) -> Result<Arc<Self>, GatewayError> {
        let Offer { models: offered, aliases, prices, costs, fleet, judge, weights, names: rules } = offer;
        let mut faults = Vec::new();
        let mut free_model = false;
        let mut models = HashMap::new();
        for model in offered {
            match prices.quote(&model.name, now) {
                None => faults.push(format!(
                    "model `{}` has no price: nothing is free by accident; set one under [[prices]]",
                    model.name
                )),
                Some(quote) => {
                    free_model |= quote.hold_for(None, 1000, 1000).is_ok_and(|most| most.get() == 0)
                }
            }
            if !fleet.serves(&model.name) {
                faults.push(format!("model `{}` has no worker", model.name));
            }
            if let Some(twice) = models.insert(model.name.clone(), model) {
                faults.push(format!("model `{}` is served twice under one name", twice.name));
            }
        }
        let status = |name: &ModelName| match models.contains_key(name) {
            true => ModelStatus::Served,
            false => ModelStatus::Unknown,
        };
        faults.extend(name_faults(&status, &aliases, &rules).into_iter().map(|fault| fault.why));
        if !faults.is_empty() {
            return Err(GatewayError { faults });
        }
        let looks = models.values().any(|model: &Arc<ServedModel>| model.lane.is_messages())
            || aliases.values().any(Route::has_choice);
        let trials = aliases.iter().filter_map(|(name, route)| Some((name.clone(), trials(name, route)?)));
        let trials = trials.collect();
        Ok(Arc::new(Self {
            models,
            aliases,
            prices,
            costs,
            fleet,
            judge,
            weights,
            rules,
            trials,
            looks,
            free_model,
        }))
    }

    /// The served models, in no order.
    pub fn models(&self) -> impl Iterator<Item = &Arc<ServedModel>> {
        self.models.values()
    }

    /// The further names, in their order.
    pub fn aliases(&self) -> impl Iterator<Item = &ModelName> {
        self.aliases.keys()
    }

    /// Who computes.
    pub fn fleet(&self) -> &Arc<Fleet> {
        &self.fleet
    }

    /// Models with all names that lead to them. A name of several leads to its main one.
    pub(crate) fn names(&self) -> impl Iterator<Item = (&ModelName, &Arc<ServedModel>)> {
        let aliases = self.aliases.iter();
        let aliases = aliases.filter_map(|(alias, route)| Some((alias, self.models.get(route.main()?)?)));
        self.models.iter().chain(aliases)
    }

    /// The model served under a name or alias; of several the main one.
    pub(crate) fn resolve(&self, name: &ModelName) -> Option<&Arc<ServedModel>> {
        match self.aliases.get(name) {
            Some(route) => self.models.get(route.main()?),
            None => self.models.get(name),
        }
    }

    /// Whether a model is somebody else's, by its lane.
    pub(crate) fn is_far(&self, name: &ModelName) -> bool {
        self.models.get(name).is_some_and(|model| model.lane.is_messages())
    }

    /// Whether a body has to be looked at before it is read.
    pub(crate) const fn looks(&self) -> bool {
        self.looks
    }

    /// Whether what `name` leads to is offered where calls may be worked on.
    pub(crate) fn offers_within(&self, name: &ModelName, residency: &Residency) -> bool {
        self.models_of(name).any(|model| self.fleet.serves_within(model, residency))
    }

    /// Where what `name` leads to is offered. `None` among them: where nobody has said.
    pub(crate) fn regions_of(&self, name: &ModelName) -> BTreeSet<Option<Region>> {
        self.models_of(name).flat_map(|model| self.fleet.regions_of(model)).collect()
    }

    /// The models that may take calls that ask for `name`.
    fn models_of<'a>(&'a self, name: &'a ModelName) -> impl Iterator<Item = &'a ModelName> {
        let route = self.aliases.get(name);
        let arms = route.into_iter().flat_map(Route::open).map(|arm| &arm.model);
        arms.chain(route.is_none().then_some(name))
    }

    /// The model that takes a call with this body that asks for `name`, or for what has come after it: one that is offered where the call may be
    /// worked on, if any is.
    pub(crate) fn choose(&self, name: &ModelName, asker: &Asker, body: &[u8]) -> Option<Arc<ServedModel>> {
        let name = self.current(name, asker.now);
        let model = match self.aliases.get(name) {
            Some(route) if route.has_choice() => {
                let draw = Draw::new(name, route, asker, body);
                let trials = self.trials.get(name);
                let stays = |arm: &Arm| !trials.is_some_and(|trials| trials.is_out(&arm.model));
                let within = |arm: &Arm| self.fleet.serves_within(&arm.model, &asker.principal.regions);
                &route
                    .choose(&draw, |arm| stays(arm) && within(arm))
                    .or_else(|| route.choose(&draw, stays))?
                    .model
            }
            Some(route) => route.main()?,
            None => name,
        };
        self.models.get(self.current(model, asker.now)).map(Arc::clone)
    }

    /// What has come after a name that has moved on, and after that.
    fn current<'a>(&'a self, name: &'a ModelName, now: UnixNanos) -> &'a ModelName {
        let next = |name: &&'a ModelName| self.rules.notices.get(*name)?.moved(now);
        std::iter::successors(Some(name), next).take(MOST_MOVES).last().unwrap_or(name)
    }

    /// What is to be told of a name, or else of the model that it leads to.
    pub(crate) fn notice<'a>(
        &'a self,
        asked: &'a ModelName,
        model: &'a ModelName,
    ) -> Option<(&'a ModelName, &'a Notice)> {
        let notices = &self.rules.notices;
        let named = |name| notices.get(name).map(|notice| (name, notice));
        named(asked).or_else(|| named(model))
    }

    /// Whether anything ends.
    pub(crate) fn has_notices(&self) -> bool {
        !self.rules.notices.is_empty()
    }

    /// Whether answers say where a name led.
    pub(crate) fn tells_aliases(&self) -> bool {
        self.rules.tell_aliases
    }

    /// The model that answers instead of `failed` if calls of `asked` end with this code at this stage. It was not tried, and is
    /// offered where the call may be worked on. The route's fallbacks come first. If the failure was the model's, the other models
    /// that the route leads to come next.
    pub(crate) fn fallback(
        &self,
        asked: &str,
        (code, stage): (Code, Stage),
        failed: &ServedModel,
        tried: &[ModelName],
        residency: &Residency,
    ) -> Option<Arc<ServedModel>> {
        let asked = ModelName::new(asked).ok()?;
        let route = self.aliases.get(&asked)?;
        let trials = self.trials.get(&asked);
        let stays = |arm: &&Arm| !trials.is_some_and(|trials| trials.is_out(&arm.model));
        let arms = route.open().filter(|_| Fallbacks::is_of_the_model(code, stage)).filter(stays);
        let others = route.fallbacks.after(code, stage).chain(arms.map(|arm| &arm.model));
        let mut others = others.filter(|name| **name != failed.name && !tried.contains(name));
        others.find_map(|name| {
            self.models.get(name).filter(|_| self.fleet.serves_within(name, residency)).map(Arc::clone)
        })
    }

    /// Whether a call of `asked` that was read to be rendered for `model` may be put to a model that is asked in messages.
    pub(crate) fn may_fall_back_on_messages(&self, asked: &ModelName, model: &ServedModel) -> bool {
        let is_messages =
            |name: &ModelName| self.models.get(name).is_some_and(|model| model.lane.is_messages());
        let route = self.aliases.get(asked).filter(|_| !model.lane.is_messages());
        route.is_some_and(|route| route.models().any(is_messages))
    }

    /// What a call that asks for `asked`, and goes to `model`, is watched for.
    pub(crate) fn trial(&self, asked: &ModelName, model: &ModelName) -> Option<Box<Trial>> {
        self.trials.get(asked)?.call(model)
    }

    /// Watches go on where their entries are those of the catalogue before.
    pub(crate) fn go_on_from(&self, former: &Self) {
        for (name, trials) in &self.trials {
            if let Some(former) = former.trials.get(name) {
                trials.go_on_from(former);
            }
        }
    }

    /// Everything on trial.
    pub(crate) fn watches(&self) -> impl Iterator<Item = &Arc<Watch>> {
        self.trials.values().flat_map(Trials::watches)
    }

    /// Names that lead to several models, or to one on trial, as they stand.
    pub fn routes(&self) -> impl Iterator<Item = (&ModelName, &Route)> {
        self.aliases.iter().filter(|(_, route)| route.has_choice())
    }

    /// What is seen of a model on trial.
    pub fn canary(&self, route: &ModelName, model: &ModelName) -> Option<CanaryView> {
        let watch = self.trials.get(route)?.watches().find(|watch| watch.model == *model)?;
        Some(watch.view())
    }

    /// How calls are copied that ask for `asked` and are served by `model`: what is said of the name asked for comes first.
    pub(crate) fn shadow<'a>(
        &'a self,
        asked: &'a ModelName,
        model: &'a ModelName,
    ) -> Option<(&'a ModelName, &'a Arc<ShadowSpec>)> {
        let shadows = &self.rules.shadows;
        let named = |name| shadows.get(name).map(|spec| (name, spec));
        named(asked).or_else(|| named(model))
    }

    /// Whose calls are copied, and where to.
    pub fn shadows(&self) -> impl Iterator<Item = (&ModelName, &ShadowSpec)> {
        self.rules.shadows.iter().map(|(name, spec)| (name, &**spec))
    }

    /// Whether any calls are copied.
    pub(crate) fn has_shadows(&self) -> bool {
        !self.rules.shadows.is_empty()
    }

    pub(crate) fn prices(&self) -> &PriceList {
        &self.prices
    }

    pub(crate) fn costs(&self) -> &CostList {
        &self.costs
    }

    pub(crate) fn judge(&self) -> Option<&Arc<dyn Judge>> {
        self.judge.as_ref()
    }

    /// An organisation's share of an engine.
    pub(crate) fn weight(&self, org: &OrgId) -> u32 {
        self.weights.get(org).copied().unwrap_or(1)
    }

    pub(crate) fn has_free_model(&self) -> bool {
        self.free_model
    }
}

/// What is on trial in a route.
fn trials(name: &ModelName, route: &Route) -> Option<Trials> {
    let watch = |arm: &Arm| Some(Watch::new(name, &arm.model, arm.weight, arm.canary?));
    Trials::of(route.arms.iter().filter_map(watch))
}

/// What a gateway cannot be served with. Every fault at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayError {
    /// One line each.
    pub faults: Vec<String>,
}

impl fmt::Display for GatewayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.faults.join("; "))
    }
}

impl std::error::Error for GatewayError {}
