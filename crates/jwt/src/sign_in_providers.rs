//! The identity providers at which operators sign in, as a whole that a reload replaces. Must not know cookies or
//! sessions.

use std::sync::Arc;

use arc_swap::ArcSwap;
use headrace_domain::Clock;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::code_exchange::ProviderClient;
use crate::sign_in::{ProviderUser, SignInProvider};
use crate::sign_in_config::SignInConfig;

/// The providers in force.
#[derive(Debug, Default)]
pub struct SignInProviders {
    all: ArcSwap<Vec<Arc<SignInProvider>>>,
    /// The tasks that keep keys fresh. Replacing them ends the former ones.
    tasks: Mutex<JoinSet<()>>,
}

impl SignInProviders {
    /// Replaces the providers, and keeps their keys fresh on `runtime`. Providers whose settings are the same keep their
    /// keys.
    pub fn replace(
        &self,
        wanted: Vec<(SignInConfig, Arc<dyn ProviderClient>)>,
        clock: &Arc<dyn Clock>,
        runtime: &Handle,
    ) {
        let former = self.list();
        let providers: Vec<_> = wanted
            .into_iter()
            .map(|(config, client)| {
                let same = former.iter().find(|provider| provider.has_config(&config)).cloned();
                same.unwrap_or_else(|| Arc::new(SignInProvider::new(config, client, clock)))
            })
            .collect();
        let mut tasks = JoinSet::new();
        for provider in &providers {
            tasks.spawn_on(Arc::clone(provider).keep_fresh(), runtime);
        }
        self.all.store(Arc::new(providers));
        *self.tasks.lock() = tasks;
    }

    /// The providers, in the order of the settings.
    pub fn list(&self) -> Arc<Vec<Arc<SignInProvider>>> {
        self.all.load_full()
    }

    /// The provider with this name.
    pub fn named(&self, name: &str) -> Option<Arc<SignInProvider>> {
        self.all.load().iter().find(|provider| provider.name() == name).cloned()
    }

    /// Returns whether a user may still be an operator with that role: the provider is configured, and its rules are the
    /// ones that gave the role.
    pub fn still_allow(&self, user: &ProviderUser) -> bool {
        self.all.load().iter().any(|provider| provider.still_allows(user))
    }
}
