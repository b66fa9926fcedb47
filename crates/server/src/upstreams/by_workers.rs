//! Models that workers at other Headrace servers compute from this gateway's token ids. Must not know how a job is
//! sent.

use std::sync::Arc;

use headrace_catalog::{Backend, ServedModel};
use headrace_config::relayed::RelayedConfig;
use headrace_domain::ModelName;
use headrace_engine_api::{Capabilities, Engine as _};
use headrace_fleet::Worker;
use headrace_upstream::WorkerModel;

use super::{FormerWorkers, ListedModels, UpstreamModels, UpstreamSite, id, key, sites_at};
use crate::workers::RemoteModel;

impl UpstreamModels {
    /// Adds a model that is configured with its targets, if at least one target is a worker. All targets must then be
    /// workers with the same tokenizer assets; others are left out with a note.
    pub(super) fn by_workers(
        &mut self,
        model: &RelayedConfig,
        sites: &[UpstreamSite],
        before: &FormerWorkers<'_>,
    ) {
        let mut first: Option<&RemoteModel> = None;
        let mut engines = Vec::new();
        let all =
            model.targets.iter().flat_map(|target| sites_at(target, sites).map(move |site| (target, site)));
        for (target, site) in all {
            let (name, by) = (&model.name, id(site, &target.model));
            if !site.upstream.is_worker() {
                self.notes.push(format!(
                    "`{name}` is not answered by {by}: others of its targets are workers, and this one has no `secret_file`"
                ));
                continue;
            }
            self.note_faults(site);
            self.note_unlisted(name, site, &target.model);
            let Some(their) = site.theirs.get(&target.model) else { continue };
            let same = first.get_or_insert(their);
            if same.about.words != their.about.words {
                self.notes.push(format!(
                    "`{name}` is not answered by {by}: its tokenizer, template or sizes are others than those of its first target"
                ));
                continue;
            }
            engines.extend(self.worker(name, site, their, before));
        }
        let Some(their) = first else {
            let name = &model.name;
            self.notes.push(format!("`{name}` is not served before one of its workers says what it has"));
            return;
        };
        let Some(backend) = their.token_backend(&engines) else { return };
        self.models.push(Arc::new(ServedModel {
            name: model.name.clone(),
            backend: Backend::Tokens(backend),
            created_unix_s: before.created_unix_s,
            default_max_tokens: model.default_max_tokens.or(their.about.default_max_tokens),
            limits: model.limits,
            policy: model.policy.clone(),
        }));
    }

    /// Adds the worker that answers for `name` at a server, and returns its capabilities. Returns `None` if the model
    /// there cannot be used.
    pub(super) fn worker(
        &mut self,
        name: &ModelName,
        site: &UpstreamSite,
        their: &RemoteModel,
        before: &FormerWorkers<'_>,
    ) -> Option<Capabilities> {
        let theirs = their.about.capabilities.model.as_str();
        let engine = match WorkerModel::new(&site.upstream, &their.about, before.clock) {
            Ok(engine) => engine,
            Err(why) => {
                self.notes.push(format!("`{name}` is not answered by {}: {why}", id(site, theirs)));
                return None;
            }
        };
        let capabilities = engine.capabilities().clone();
        let text = format!("{} {capabilities:?}", their.about.words);
        let key = key(name, site, theirs, Some((text.into(), capabilities.context_window)));
        let worker = before.workers.get(&key).cloned().unwrap_or_else(|| {
            let worker = Worker::new(&id(site, theirs), name.clone(), Arc::new(engine)).at(&site.seen);
            Arc::new(worker.within(site.config.region.clone()))
        });
        self.workers.push(Arc::clone(&worker));
        self.workers_by_key.insert(key, worker);
        Some(capabilities)
    }

    /// Adds a note for each model of a worker that cannot be served from here.
    pub(super) fn note_faults(&mut self, site: &UpstreamSite) {
        if !matches!(site.listed, ListedModels::Models(_)) {
            return;
        }
        for fault in &site.theirs.faults {
            let note = format!("upstream `{}`: {fault}", site.upstream.name());
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
    }
}
