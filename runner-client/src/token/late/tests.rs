use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use futures_util::future::{join, join_all};
use http::StatusCode;
use tokio::sync::Notify;
use tokio::time::{advance, sleep, timeout};

use super::*;
use crate::testing::TestClock;

const HOUR: Duration = Duration::from_secs(3_600);

/// An issuer on its own true clock, that mints `token-1`, `token-2`, ... and fails or stalls when it is told to.
struct Mint {
    clock: Arc<TestClock>,
    life: Duration,
    mints: AtomicU32,
    fails: AtomicBool,
    stalls: AtomicBool,
    go_on: Notify,
}

impl Mint {
    fn new(life: Duration) -> Arc<Self> {
        Arc::new(Self {
            clock: Arc::new(TestClock::new()),
            life,
            mints: AtomicU32::new(0),
            fails: AtomicBool::new(false),
            stalls: AtomicBool::new(false),
            go_on: Notify::new(),
        })
    }

    fn attempts(&self) -> u32 {
        self.mints.load(Ordering::SeqCst)
    }

    fn arm(self: &Arc<Self>, source: &LateTokenSource) {
        let mint = Arc::clone(self);
        source.arm(Arc::new(move || Arc::clone(&mint).issue()));
    }

    async fn issue(self: Arc<Self>) -> Result<IssuedToken, IssueError> {
        let number = self.mints.fetch_add(1, Ordering::SeqCst) + 1;
        if self.stalls.load(Ordering::SeqCst) {
            self.go_on.notified().await;
        }
        if self.fails.load(Ordering::SeqCst) {
            return Err(IssueError::Unreadable);
        }
        let now = self.clock.now();
        let token = Token::new(&format!("token-{number}"), Some(now + self.life))?;
        Ok(IssuedToken { token, server_time: Some(now), check_again: None })
    }
}

fn source_on(clock: TestClock) -> LateTokenSource {
    LateTokenSource::with(LateTokenSettings::default(), Arc::new(clock), Arc::new(Jitter::seeded(1)))
}

fn armed(mint: &Arc<Mint>) -> LateTokenSource {
    let source = source_on(TestClock::new());
    mint.arm(&source);
    source
}

async fn text(source: &LateTokenSource) -> String {
    source.token().await.unwrap().header().to_str().unwrap().to_owned()
}

/// Lets background tasks run; paused time passes a little.
async fn settle() {
    sleep(Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn an_unarmed_source_says_so_and_wakes_whoever_waits_when_it_is_armed() {
    let source = source_on(TestClock::new());
    assert!(matches!(source.token().await, Err(TokenError::Unarmed)));
    let mut arming = source.arming().unwrap();
    let mint = Mint::new(HOUR);
    let waiting = async {
        arming.changed().await.unwrap();
        text(&source).await
    };
    let (token, ()) = join(waiting, async { mint.arm(&source) }).await;
    assert_eq!(token, "token-1");
}

#[tokio::test(start_paused = true)]
async fn a_thousand_callers_share_one_mint() {
    let mint = Mint::new(HOUR);
    mint.stalls.store(true, Ordering::SeqCst);
    let source = armed(&mint);
    let callers = (0..1_000).map(|_| {
        let source = source.clone();
        tokio::spawn(async move { source.token().await.unwrap() })
    });
    let callers: Vec<_> = callers.collect();
    settle().await;
    mint.go_on.notify_one();
    let tokens: Vec<Token> = join_all(callers).await.into_iter().map(Result::unwrap).collect();
    assert!(tokens.iter().all(|token| token.is_same(&tokens[0])));
    assert_eq!(mint.attempts(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_ends_the_mint_for_nobody() {
    let mint = Mint::new(HOUR);
    mint.stalls.store(true, Ordering::SeqCst);
    let source = armed(&mint);
    assert!(timeout(Duration::from_secs(1), source.token()).await.is_err());
    mint.go_on.notify_one();
    assert_eq!(text(&source).await, "token-1");
    assert_eq!(mint.attempts(), 1);
}

#[tokio::test(start_paused = true)]
async fn arming_again_drops_the_cached_token_and_a_mint_under_way() {
    let (old, new) = (Mint::new(HOUR), Mint::new(HOUR));
    let source = armed(&old);
    assert_eq!(text(&source).await, "token-1");
    new.mints.store(10, Ordering::SeqCst);
    new.arm(&source);
    assert_eq!(text(&source).await, "token-11");

    old.stalls.store(true, Ordering::SeqCst);
    old.arm(&source);
    let (token, ()) = join(text(&source), async {
        settle().await;
        new.arm(&source);
    })
    .await;
    assert_eq!(token, "token-12");
}

#[tokio::test(start_paused = true)]
async fn disarming_leaves_waiters_unarmed() {
    let mint = Mint::new(HOUR);
    mint.stalls.store(true, Ordering::SeqCst);
    let source = armed(&mint);
    let (token, ()) = join(source.token(), async {
        settle().await;
        source.disarm();
    })
    .await;
    assert!(matches!(token, Err(TokenError::Unarmed)));
    assert!(matches!(source.token().await, Err(TokenError::Unarmed)));
}

#[tokio::test(start_paused = true)]
async fn a_token_is_renewed_ahead_of_its_end_in_the_background() {
    let mint = Mint::new(HOUR);
    let source = armed(&mint);
    assert_eq!(text(&source).await, "token-1");
    advance(HOUR - Duration::from_secs(5 * 60 + 75)).await;
    assert_eq!(text(&source).await, "token-1");
    settle().await;
    assert_eq!(mint.attempts(), 1, "too early");
    advance(Duration::from_secs(75)).await;
    mint.stalls.store(true, Ordering::SeqCst);
    assert_eq!(text(&source).await, "token-1", "the old token serves while the new one is minted");
    settle().await;
    mint.go_on.notify_one();
    settle().await;
    assert_eq!(text(&source).await, "token-2");
    assert_eq!(mint.attempts(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_short_token_is_renewed_in_the_second_half_of_its_life() {
    let mint = Mint::new(Duration::from_secs(60));
    let source = armed(&mint);
    for round in 1..=20 {
        assert_eq!(text(&source).await, format!("token-{round}"));
        advance(Duration::from_secs(30)).await;
        assert_eq!(text(&source).await, format!("token-{round}"));
        settle().await;
        assert_eq!(mint.attempts(), round, "too early");
        advance(Duration::from_secs(10)).await;
        assert_eq!(text(&source).await, format!("token-{round}"));
        settle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_old_token_serves_until_its_end_while_renewal_fails_and_attempts_back_off() {
    let mint = Mint::new(HOUR);
    let source = armed(&mint);
    assert_eq!(text(&source).await, "token-1");
    mint.fails.store(true, Ordering::SeqCst);
    let end = Instant::now() + HOUR - Duration::from_secs(1);
    while Instant::now() < end {
        assert_eq!(text(&source).await, "token-1");
        advance(Duration::from_millis(500)).await;
    }
    let attempts = mint.attempts() - 1;
    assert!((8..=15).contains(&attempts), "{attempts} attempts in five to six minutes");
    advance(Duration::from_secs(2)).await;
    let Err(error @ TokenError::Unavailable { .. }) = source.token().await else { panic!("an ended token served") };
    mint.fails.store(false, Ordering::SeqCst);
    advance(error.retry_in().unwrap()).await;
    assert!(source.token().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_refused_token_is_dropped_once_and_a_second_refusal_backs_off() {
    let mint = Mint::new(HOUR);
    let source = armed(&mint);
    let first = source.token().await.unwrap();
    source.refused(&first);
    let second = source.token().await.unwrap();
    assert!(!second.is_same(&first));
    source.refused(&first);
    assert!(source.token().await.unwrap().is_same(&second), "the refusal of an old token drops nothing");
    source.refused(&second);
    let Err(error) = source.token().await else { panic!("minted at once after a second refusal") };
    assert!(matches!(error, TokenError::Unavailable { cause: IssueError::TokensRefused, .. }));
    assert_eq!(mint.attempts(), 2);
    advance(error.retry_in().unwrap()).await;
    let third = source.token().await.unwrap();
    assert_eq!(mint.attempts(), 3);
    advance(STEADY_SERVICE).await;
    source.refused(&third);
    assert!(source.token().await.is_ok(), "a token that served well is replaced at once");
}

#[tokio::test(start_paused = true)]
async fn an_issuer_that_gives_the_refused_token_again_backs_off() {
    let token = Token::new("from-a-file", None).unwrap();
    let source = source_on(TestClock::new());
    let issued = token.clone();
    source.arm(Arc::new(move || {
        let issued = issued.clone();
        async move { Ok(issued.into()) }
    }));
    source.refused(&source.token().await.unwrap());
    source.refused(&source.token().await.unwrap());
    assert!(matches!(source.token().await, Err(TokenError::Unavailable { .. })));
}

#[tokio::test(start_paused = true)]
async fn ends_are_judged_by_the_issuers_clock() {
    for (off, clock) in [(0, TestClock::new()), (1, TestClock::new().behind(2 * HOUR))] {
        let mint = Mint::new(HOUR);
        let source = source_on(clock);
        mint.arm(&source);
        assert_eq!(text(&source).await, "token-1");
        advance(Duration::from_secs(50 * 60)).await;
        assert_eq!(text(&source).await, "token-1");
        settle().await;
        assert_eq!(mint.attempts(), 1, "{off}");
        advance(Duration::from_secs(11 * 60)).await;
        assert_eq!(text(&source).await, "token-2", "an ended token served, {off}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_that_seems_to_be_over_is_left_to_the_relay_to_judge() {
    let clock = TestClock::new();
    let end = clock.now() - HOUR;
    let source = source_on(clock);
    source.arm(Arc::new(move || async move { Ok(Token::new("t", Some(end))?.into()) }));
    assert!(source.token().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn issuers_that_hang_panic_or_ask_for_patience_cost_a_pause_and_no_more() {
    let source = source_on(TestClock::new());
    source.arm(Arc::new(std::future::pending::<Result<IssuedToken, IssueError>>));
    let asked = Instant::now();
    assert!(matches!(source.token().await, Err(TokenError::Unavailable { cause: IssueError::Timeout, .. })));
    assert_eq!(asked.elapsed(), Duration::from_secs(30));

    source.arm(Arc::new(|| async { panic!("an issuer's own fault") }));
    assert!(matches!(source.token().await, Err(TokenError::Unavailable { cause: IssueError::Panicked, .. })));

    let retry_after = Some(Duration::from_secs(90));
    source.arm(Arc::new(move || async move {
        Err(IssueError::Refused { status: StatusCode::TOO_MANY_REQUESTS, reason: None, retry_after })
    }));
    assert_eq!(source.token().await.unwrap_err().retry_in(), retry_after);

    Mint::new(HOUR).arm(&source);
    assert!(source.token().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_newer_token_of_a_file_is_used_though_the_old_one_has_not_ended() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "old").unwrap();
    let source = source_on(TestClock::new());
    source.arm(Arc::new(crate::FileIssuer::new(file.path())));
    assert_eq!(text(&source).await, "old");
    std::fs::write(file.path(), "new").unwrap();
    advance(Duration::from_secs(10)).await;
    assert_eq!(text(&source).await, "old");
    let seen = async {
        while text(&source).await != "new" {
            tokio::task::yield_now().await;
        }
    };
    // Reading a file takes real time, so that paused time must not run ahead of it.
    tokio::time::resume();
    timeout(Duration::from_secs(10), seen).await.unwrap();
}

/// Mints bad tokens, until it has news.
struct Announcing {
    mint: Arc<Mint>,
    news: Notify,
}

impl TokenIssuer for Announcing {
    fn issue(&self) -> BoxFuture<'_, Result<IssuedToken, IssueError>> {
        Arc::clone(&self.mint).issue().boxed()
    }

    fn news(&self) -> Option<BoxFuture<'_, ()>> {
        Some(self.news.notified().boxed())
    }
}

#[tokio::test(start_paused = true)]
async fn news_of_the_issuer_end_a_pause_and_wake_whoever_waits() {
    let mint = Mint::new(HOUR);
    let issuer = Arc::new(Announcing { mint: Arc::clone(&mint), news: Notify::new() });
    let source = source_on(TestClock::new());
    source.arm(Arc::clone(&issuer) as _);
    let mut arming = source.arming().unwrap();
    arming.mark_unchanged();
    // Refused again and again: the pauses grow.
    loop {
        match source.token().await {
            Ok(token) => source.refused(&token),
            Err(error) => match error.retry_in().unwrap() {
                long if long > Duration::from_secs(3) => break,
                short => sleep(short).await,
            },
        }
    }
    let before = mint.attempts();
    issuer.news.notify_one();
    timeout(Duration::from_millis(100), arming.changed()).await.unwrap().unwrap();
    assert!(source.token().await.is_ok());
    assert_eq!(mint.attempts(), before + 1);
}
