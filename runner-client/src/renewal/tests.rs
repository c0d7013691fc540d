use std::collections::VecDeque;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use telemetry_certs::{CertificateRequest, ClusterAuthority, ClusterName, RunnerRequest};
use telemetry_proto::renew::RenewResponse;
use telemetry_proto::{Reason, RunnerId, header};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::connection::SendError;
use crate::testing::TestClock;

const LIFE: Duration = Duration::from_secs(30_000);

/// What the coordinator does with the next request.
enum Play {
    Refuse(Reason),
    NameAnother,
    CertifyAnotherKey,
}

/// A coordinator that renews, but for what it is told.
struct Coordinator {
    authority: ClusterAuthority,
    clock: Arc<dyn Clock>,
    plays: Mutex<VecDeque<Play>>,
    asked: watch::Sender<Vec<Instant>>,
}

impl Coordinator {
    fn certify(&self, runner: &str, request: &[u8]) -> RenewResponse {
        let request = CertificateRequest::read(request).unwrap();
        let wanted = RunnerRequest { lifetime: LIFE, ..RunnerRequest::new(RunnerId::new(runner).unwrap()) };
        let certified = self.authority.certify_runner(&wanted, &request).unwrap();
        RenewResponse {
            certificate_chain: certified.chain_pem,
            not_after: certified.not_after.into(),
            server_time: self.clock.now().into(),
        }
    }

    fn answer(&self, request: &Request<Bytes>) -> Response<Bytes> {
        assert_eq!((request.method().as_str(), request.uri().path()), ("POST", "/_identity/certificate"));
        assert_eq!(request.headers()["content-type"], "application/pkcs10");
        assert_eq!(request.headers()["content-length"], request.body().len().to_string());
        self.asked.send_modify(|asked| asked.push(Instant::now()));
        let other = || PendingKey::generate(KeyKind::P256, &RunnerId::new("r7").unwrap()).unwrap();
        let response = match self.plays.lock().pop_front() {
            None => self.certify("r7", request.body()),
            Some(Play::NameAnother) => self.certify("r8", request.body()),
            Some(Play::CertifyAnotherKey) => self.certify("r7", other().request()),
            Some(Play::Refuse(reason)) => {
                let response = Response::builder().status(reason.status()).header(header::REASON, reason.as_str());
                return response.body(Bytes::new()).unwrap();
            }
        };
        Response::new(serde_json::to_vec(&response).unwrap().into())
    }
}

impl Transport for Coordinator {
    fn send(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<Bytes>, SendError>> {
        async move { Ok(self.answer(&request)) }.boxed()
    }
}

#[derive(Default)]
struct Store {
    saved: Mutex<Vec<(String, String)>>,
    is_broken: bool,
}

impl IdentityStore for Store {
    fn save(&self, chain_pem: &str, key_pem: &str) -> io::Result<()> {
        if self.is_broken {
            return Err(io::Error::other("read-only"));
        }
        self.saved.lock().push((chain_pem.to_owned(), key_pem.to_owned()));
        Ok(())
    }
}

struct Rig {
    coordinator: Arc<Coordinator>,
    identity: Arc<Identity>,
    store: Arc<Store>,
    roots: Roots,
    clock: Arc<TestClock>,
    _task: AbortOnDropHandle<()>,
}

fn start(plays: Vec<Play>, store: Store) -> Rig {
    let clock = Arc::new(TestClock::new());
    let cluster = ClusterName::new("c").unwrap();
    let authority = ClusterAuthority::create_by_clock(&cluster, KeyKind::Ed25519, Arc::clone(&clock) as _).unwrap();
    let wanted = RunnerRequest { lifetime: LIFE, ..RunnerRequest::new(RunnerId::new("r7").unwrap()) };
    let credentials = authority.issue_runner(&wanted).unwrap().credentials().unwrap();
    let roots = Roots::from_pem(authority.certificate_pem().as_bytes()).unwrap();
    let coordinator = Arc::new(Coordinator {
        authority,
        clock: Arc::clone(&clock) as _,
        plays: Mutex::new(plays.into()),
        asked: watch::channel(Vec::new()).0,
    });
    let (identity, store) = (Identity::new(credentials, roots.clone(), None), Arc::new(store));
    let renewer = Renewer {
        identity: Arc::clone(&identity),
        transport: Arc::clone(&coordinator) as _,
        store: Some(Arc::clone(&store) as _),
        clock: Arc::clone(&clock) as _,
        jitter: Arc::new(Jitter::seeded(1)),
    };
    let _task = AbortOnDropHandle::new(tokio::spawn(renewer.run()));
    Rig { coordinator, identity, store, roots, clock, _task }
}

impl Rig {
    /// Waits until the coordinator was asked so often, and for what follows from it.
    async fn asked(&self, times: usize) -> Vec<Instant> {
        let mut asked = self.coordinator.asked.subscribe();
        asked.wait_for(|asked| asked.len() >= times).await.unwrap().clone()
    }

    async fn renewed(&self) -> Arc<Current> {
        let mut changes = self.identity.current.subscribe();
        changes.changed().await.unwrap();
        changes.borrow().clone()
    }

    fn outcomes(&self, outcome: &'static str) -> u64 {
        self.identity.renewals.get_or_create(&[("outcome", outcome)]).get()
    }
}

#[tokio::test(start_paused = true)]
async fn a_certificate_is_renewed_at_two_thirds_of_its_life_again_and_again() {
    let rig = start(Vec::new(), Store::default());
    let mut last = Instant::now();
    for times in 1..=5 {
        let before = rig.identity.current.borrow().credentials.leaf().clone();
        let after = rig.renewed().await;
        assert_ne!(&before, after.credentials.leaf());
        let asked = rig.asked(times).await;
        assert_eq!(asked.len(), times, "asked once each time");
        // The first was dated back by five minutes, which this client can't know.
        let life = if times == 1 { LIFE - Duration::from_secs(100) } else { LIFE };
        let waited = asked[times - 1] - last;
        let share = waited.as_secs_f64() / life.as_secs_f64();
        assert!((0.60..0.67).contains(&share), "{share} of its life");
        last = asked[times - 1];
        let (chain, key) = rig.store.saved.lock().last().unwrap().clone();
        let saved = Credentials::from_pem(chain.as_bytes(), key.as_bytes()).unwrap();
        assert_eq!(saved.leaf(), after.credentials.leaf(), "what is stored is what is shown");
    }
    let state = rig.identity.state();
    assert_eq!((state.renewed, state.trouble), (5, None));
    let ends = (rig.clock.now() + LIFE).duration_since(SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(rig.identity.ends.get(), ends.as_secs().cast_signed());
}

#[tokio::test(start_paused = true)]
async fn a_refusal_and_an_answer_of_no_use_leave_the_old_one_and_it_is_tried_again() {
    let plays = vec![
        Play::Refuse(Reason::Draining),
        Play::NameAnother,
        Play::CertifyAnotherKey,
        Play::Refuse(Reason::RunnerRemoved),
    ];
    let rig = start(plays, Store::default());
    let before = rig.identity.current.borrow().credentials.leaf().clone();
    for times in 1..=4 {
        rig.asked(times).await;
        tokio::task::yield_now().await;
        assert_eq!(rig.identity.current.borrow().credentials.leaf(), &before);
    }
    assert!(rig.store.saved.lock().is_empty());
    rig.renewed().await;
    let asked = rig.asked(5).await;
    for pair in asked.windows(2) {
        assert!(pair[1] - pair[0] >= Duration::from_secs(1), "{asked:?}");
    }
    assert!(asked[4] - asked[0] < Duration::from_secs(60), "{asked:?}");
    assert_eq!((rig.outcomes("refused"), rig.outcomes("failed"), rig.outcomes("renewed")), (2, 2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_coordinator_that_renews_nothing_is_left_alone_for_an_hour() {
    let rig = start(vec![Play::Refuse(Reason::RenewalNotOffered)], Store::default());
    rig.asked(1).await;
    tokio::task::yield_now().await;
    assert!(rig.identity.state().trouble.unwrap().contains("does not renew certificates"));
    let asked = rig.asked(2).await;
    assert!(asked[1] - asked[0] >= NOT_OFFERED_PAUSE);
}

#[tokio::test(start_paused = true)]
async fn a_renewed_certificate_that_can_not_be_stored_is_shown_all_the_same() {
    let rig = start(Vec::new(), Store { is_broken: true, ..Store::default() });
    rig.renewed().await;
    assert_eq!((rig.outcomes("renewed"), rig.outcomes("not_stored")), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn files_that_hold_what_is_shown_change_nothing_and_others_begin_a_new_life() {
    let rig = start(Vec::new(), Store::default());
    rig.renewed().await;
    let (chain, key) = rig.store.saved.lock().last().unwrap().clone();
    let same = Credentials::from_pem(chain.as_bytes(), key.as_bytes()).unwrap();
    assert!(!rig.identity.set(&same, &rig.roots).unwrap());
    let other = rig.coordinator.authority.issue_runner(&RunnerRequest::new(RunnerId::new("r7").unwrap())).unwrap();
    assert!(rig.identity.set(&other.credentials().unwrap(), &rig.roots).unwrap());
    tokio::task::yield_now().await;
    let ends = rig.identity.state().ends.unwrap();
    assert!(ends > rig.clock.now() + LIFE, "the new one's");
}

#[tokio::test(start_paused = true)]
async fn what_was_tried_out_is_shown_once_though_the_files_have_it_first() {
    let rig = start(Vec::new(), Store::default());
    let issued = rig.coordinator.authority.issue_runner(&RunnerRequest::new(RunnerId::new("r7").unwrap())).unwrap();
    let (credentials, now) = (issued.credentials().unwrap(), rig.clock.now());
    *rig.identity.tried.lock() = Some((Current::new(credentials.clone(), rig.roots.clone(), Some(now)), None));
    assert!(rig.identity.set(&credentials, &rig.roots).unwrap());
    let shown = rig.identity.current.borrow().clone();
    assert_eq!(shown.since, now, "it is what was tried out, with its connection");
    rig.identity.adopt().unwrap();
    assert!(Arc::ptr_eq(&shown, &rig.identity.current.borrow()));
}
