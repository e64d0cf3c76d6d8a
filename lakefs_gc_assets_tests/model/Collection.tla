---------------------------- MODULE Collection ----------------------------
(* The protocol of a collection: a lakeFS server whose clients go on working, the store, and processes that collect.

   docs/model.md says what this model shows, what it leaves out, and which test of the code belongs to each invariant.
   Scopes and the rules that are taken out one by one (`Off`) are in scopes.py.

   A repository has one path here. So a commit is known by the address that it holds, or 0 for none, and commits of one
   content are one commit, as they share a range in lakeFS. An entry that is staged may hide one that is sealed. *)
EXTENDS Naturals, FiniteSets, Sequences, TLC

CONSTANTS
  Addresses, \* 1..n: places of objects
  Old,       \* the addresses whose objects were there long before
  Branches,  \* 1..n; branch 1 is never deleted
  Begin, End,\* the abstract clock runs from Begin to End
  Window,    \* how long after its issue an address may be linked; also min_age_hours
  Skew,      \* how far a server's clock may be behind; also clock_skew_minutes
  Unnamed,   \* TRUE: ranges that no commit names count as live
  ByRules,   \* TRUE: commits that no branch shows expire
  Retain,    \* how long they stay active
  Twins,     \* TRUE: all objects have the same content
  Torn,      \* TRUE: commits and moves of branch heads take two steps, and others act in between
  Faulty,    \* TRUE: at one moment the server may leave out what is staged without saying so
  Clients,   \* names of what clients do
  Runs,      \* how many runs are opened, at most
  Processes, \* 1..n
  Locks,     \* how often the lock is taken, at most
  Expiry,    \* after how long without renewal others may take it
  Valid,     \* how long a recheck is believed
  Wait,      \* how long after the listing it begins, at the earliest
  WaitFrom,  \* "listing" or "uncommitted": from where that is counted
  Dry,       \* TRUE: runs are dry runs, which persons approve
  Quarantine,\* TRUE: objects are copied before they are deleted
  Optimized, \* TRUE: a run builds on the newest one that swept
  Crashes,   \* how many processes are killed, at most
  Off        \* the rules that are taken out

None == 100
Tombstone == 101
On(rule) == rule \notin Off
Min(S) == CHOOSE x \in S : \A y \in S : x <= y
Order == IF ~On("list first") THEN <<"prepare", "list", "dump">>
         ELSE IF ~On("uncommitted first") THEN <<"list", "dump", "prepare">>
         ELSE <<"list", "prepare", "dump">>

VARIABLES
  now,
  issued, modified, slice, linked, store,   \* objects: time in the name, LastModified, slice, TRUE for issued links
  head, line, staged, sealed, moving,       \* branches: their commit, its ancestors, what is staged
  made, left,                               \* contents ever committed; when they were last a head
  fault,                                    \* the moment at which the server may leave entries out
  opened, run, lock, taken, process, crashes,
  gone, shown, copies, restorePoint, back,  \* what runs deleted, what persons saw, copies, restorations
  wrong                                     \* what must never happen, and shows in no other variable

(* Clients begin once a run is opened, unless the scope says otherwise. *)
Acts == opened > 0 \/ "act before" \in Clients
May(name) == name \in Clients /\ Acts

objects == <<issued, modified, slice, linked, store>>
refs == <<head, line, staged, sealed, moving, made, left>>
history == <<gone, shown, copies, restorePoint, back, wrong>>
vars == <<now, objects, refs, fault, opened, run, lock, taken, process, crashes, history>>

---------------------------------------------------------------------------
(* The server and its clients *)

Exists(b) == head[b] # None
Heads == {head[b] : b \in Branches} \cap Addresses
Newest(b) == IF staged[b] # None THEN staged[b] ELSE sealed[b]
Seen(b) == IF Newest(b) = Tombstone THEN 0 ELSE IF Newest(b) # None THEN Newest(b) ELSE head[b]
SameContent(x, y) == x \in Addresses /\ y \in Addresses /\ (x = y \/ Twins)
Active(c, at) == c \in Heads \/ (left[c] # None /\ left[c] + Retain >= at)
(* A commit does not take up what is sealed with the content of the head. *)
Staged(b) == {staged[b]} \cup (IF staged[b] = None \/ ~SameContent(sealed[b], head[b]) THEN {sealed[b]} ELSE {})
Live == Heads \cup (UNION {Staged(b) : b \in Branches} \cap Addresses)
          \cup (IF ByRules THEN {c \in made : Active(c, now)} ELSE made)

(* What a client may still stage by the server's rules. Skew is how far the server's clock may be behind. *)
Linkable == {a \in Addresses : May("link") /\ modified[a] # None
               /\ IF linked[a] THEN now <= issued[a] + Window + Skew ELSE now <= modified[a] + Window}

(* What prepare_uncommited says of a branch: the newest entry, unless it has the content that the head has. *)
Uncommitted(b) == {x \in {Newest(b)} \cap Addresses : ~SameContent(x, head[b])}

Rechecked(p) == process[p].at \in {"look", "dump commits again", "dump branches again", "sweep", "delete", "write"}
                /\ now <= process[p].asOf + Valid
(* lakeFS brings what expired back at any time; nobody can keep what it brings back after the last recheck began. *)
Revivable(c) == \/ c = 0 \/ c \in Live
                \/ c \in store /\ (May("revive late") \/ (May("revive") /\ \A p \in Processes : ~Rechecked(p)))

LeftNow(b) == IF ByRules /\ head[b] \in Addresses THEN [left EXCEPT ![head[b]] = now] ELSE left

Issue == /\ May("issue")
         /\ \E lag \in 0..Skew, l \in BOOLEAN, s \in IF Optimized THEN 0..1 ELSE {0} :
              LET fresh == {a \in Addresses : issued[a] = None}
                  a == Min(fresh)
              IN /\ fresh # {}
                 /\ issued' = [issued EXCEPT ![a] = now - lag]
                 /\ slice' = [slice EXCEPT ![a] = now - lag - s]
                 /\ linked' = [linked EXCEPT ![a] = l]
         /\ UNCHANGED <<now, modified, store, refs, fault, opened, run, lock, taken, process, crashes, history>>

(* Objects of links may be uploaded with an old LastModified; a server's own uploads take as long as they take. *)
Write == /\ May("issue")
         /\ \E a \in Addresses, dated \in {0, now} :
              /\ issued[a] # None /\ modified[a] = None
              /\ dated = now \/ linked[a]
              /\ May("late upload") \/ now <= issued[a] + Window \/ (~linked[a] /\ May("long upload"))
              /\ modified' = [modified EXCEPT ![a] = dated]
              /\ store' = store \cup {a}
         /\ UNCHANGED <<now, issued, slice, linked, refs, fault, opened, run, lock, taken, process, crashes, history>>

Stage(b, x) == /\ staged' = [staged EXCEPT ![b] = x]
               /\ UNCHANGED <<now, objects, head, line, sealed, moving, made, left, fault, opened, run, lock, taken, process,
                              crashes, history>>

(* A server's own upload in parts: it is there all at once, dated back to its begin, and staged. *)
Upload == /\ May("upload")
          /\ \E b \in Branches, a \in Addresses :
               /\ Exists(b) /\ issued[a] # None /\ modified[a] = None /\ ~linked[a]
               /\ modified' = [modified EXCEPT ![a] = issued[a]]
               /\ store' = store \cup {a}
               /\ staged' = [staged EXCEPT ![b] = a]
          /\ UNCHANGED <<now, issued, slice, linked, head, line, sealed, moving, made, left, fault, opened, run, lock, taken,
                         process, crashes, history>>

(* A link may be used again as long as it is young; a server stages what it uploaded right after. *)
Link == /\ May("link")
        /\ \E b \in Branches, a \in Addresses, lag \in 0..Skew :
             /\ Exists(b) /\ modified[a] # None
             /\ IF linked[a] THEN now - lag <= issued[a] + Window ELSE now <= modified[a] + Window
             /\ Stage(b, a)

(* What lakeFS does not promise: the deprecated StageObject takes any address. *)
StageOld == /\ May("stage old")
            /\ \E b \in Branches, a \in store \cap Old : Exists(b) /\ Stage(b, a)

(* A change of an entry's metadata stages the address that is there once more. *)
Restage == May("restage") /\ \E b \in Branches : Exists(b) /\ Seen(b) \in Addresses /\ Stage(b, Seen(b))

Remove == May("remove") /\ \E b \in Branches : Exists(b) /\ Seen(b) \in Addresses /\ Stage(b, Tombstone)

Reset == /\ May("reset")
         /\ \E b \in Branches :
              /\ Newest(b) # None
              /\ staged' = [staged EXCEPT ![b] = None]
              /\ sealed' = [sealed EXCEPT ![b] = None]
         /\ UNCHANGED <<now, objects, head, line, moving, made, left, fault, opened, run, lock, taken, process, crashes,
                        history>>

(* A commit seals the staging token; later it writes what is sealed there. Equal content keeps the entry there was. *)
Sealed(b, x) == IF x = Tombstone THEN 0 ELSE IF SameContent(x, head[b]) THEN head[b] ELSE x

BeginCommit == /\ May("commit") /\ Torn
               /\ \E b \in Branches :
                    /\ staged[b] # None /\ sealed[b] = None /\ moving[b] = None
                    /\ sealed' = [sealed EXCEPT ![b] = staged[b]]
                    /\ staged' = [staged EXCEPT ![b] = None]
               /\ UNCHANGED <<now, objects, head, line, moving, made, left, fault, opened, run, lock, taken, process, crashes,
                              history>>

Commit == /\ May("commit")
          /\ \E b \in Branches :
               LET from == IF Torn THEN sealed ELSE staged
                   c == Sealed(b, from[b])
               IN /\ from[b] # None
                  /\ head' = [head EXCEPT ![b] = c]
                  /\ left' = IF ByRules /\ c \in Addresses THEN [LeftNow(b) EXCEPT ![c] = now] ELSE LeftNow(b)
                  /\ made' = made \cup ({c} \cap Addresses)
                  /\ line' = [line EXCEPT ![b] = @ \cup {c}]
                  /\ sealed' = [sealed EXCEPT ![b] = None]
                  /\ staged' = IF Torn THEN staged ELSE [staged EXCEPT ![b] = None]
          /\ UNCHANGED <<now, objects, moving, fault, opened, run, lock, taken, process, crashes, history>>

(* Merges, and by rules heads that are set to any commit: the branch is clean in the beginning. *)
BeginMove == /\ May("move") /\ Torn
             /\ \E b \in Branches, c \in made \cup {0} :
                  /\ Exists(b) /\ Newest(b) = None /\ moving[b] = None /\ c # head[b]
                  /\ moving' = [moving EXCEPT ![b] = c]
             /\ UNCHANGED <<now, objects, head, line, staged, sealed, made, left, fault, opened, run, lock, taken, process,
                            crashes, history>>

Move == /\ May("move")
        /\ \E b \in Branches, c \in made \cup {0} :
             /\ IF Torn THEN moving[b] = c ELSE Exists(b) /\ Newest(b) = None /\ c # head[b]
             /\ Revivable(c)
             /\ head' = [head EXCEPT ![b] = c]
             /\ UNCHANGED left \* a commit is dated by the one that replaces it, and none does
             /\ moving' = [moving EXCEPT ![b] = None]
             /\ line' = [line EXCEPT ![b] = IF ByRules THEN {c} ELSE @ \cup {c}]
        /\ UNCHANGED <<now, objects, staged, sealed, made, fault, opened, run, lock, taken, process, crashes, history>>

NewBranch == /\ May("branch")
             /\ \E b \in Branches, c \in made \cup {0} :
                  /\ ~Exists(b) /\ Revivable(c)
                  /\ head' = [head EXCEPT ![b] = c]
                  /\ line' = [line EXCEPT ![b] = {c}]
             /\ UNCHANGED <<now, objects, staged, sealed, moving, made, left, fault, opened, run, lock, taken, process,
                            crashes, history>>

DeleteBranch == /\ May("branch")
                /\ \E b \in Branches \ {1} :
                     /\ Exists(b)
                     /\ head' = [head EXCEPT ![b] = None]
                     /\ line' = [line EXCEPT ![b] = {}]
                     /\ staged' = [staged EXCEPT ![b] = None]
                     /\ sealed' = [sealed EXCEPT ![b] = None]
                     /\ moving' = [moving EXCEPT ![b] = None]
                /\ UNCHANGED <<now, objects, made, left, fault, opened, run, lock, taken, process, crashes, history>>

(* A batch under way ends while its recheck is valid and its lock holds, unless its machine stands still. *)
Tick == /\ now < End /\ Acts
        /\ May("stand still") \/ \A p \in Processes : process[p].at \in {"copy", "delete"} =>
             now < process[p].asOf + Valid /\ (lock.nonce = process[p].nonce => now + 1 < lock.since + Expiry)
        /\ now' = now + 1
        /\ UNCHANGED <<objects, refs, fault, opened, run, lock, taken, process, crashes, history>>

Client == Issue \/ Write \/ Upload \/ Link \/ StageOld \/ Restage \/ Remove \/ Reset \/ BeginCommit \/ Commit \/ BeginMove \/ Move
            \/ NewBranch \/ DeleteBranch

---------------------------------------------------------------------------
(* Runs. What a run stored is in `run` and outlives its processes; `process` is what a process has in memory. *)

NoCheckpoint == [there |-> FALSE, sealed |-> {}, pending |-> {}, read |-> {}, carried |-> {}, tracked |-> {}]
NoRun == [stage |-> 0, ended |-> FALSE, start |-> 0, base |-> 0, listedAt |-> 0, preparedAt |-> 0, slices |-> {},
          listed |-> {}, uncommitted |-> {}, committed |-> {}, ids |-> {}, before |-> {}, heads |-> {}, tokens |-> {},
          candidates |-> {}, planned |-> {}, receipts |-> {}, approval |-> {None}, later |-> {}, checkpoint |-> NoCheckpoint]
Idle == [at |-> "idle", run |-> 0, nonce |-> 0, branch |-> 1, known |-> {}, commits |-> {}, heads |-> {}, asOf |-> 0,
         todo |-> {}, ids |-> {}, tokens |-> {}, again |-> {}, object |-> 0, late |-> 0]
NoLock == [nonce |-> 0, run |-> 0, since |-> 0]

Ids == 1..Runs
Of(p) == run[process[p].run]
Base(r) == IF run[r].base = 0 THEN NoCheckpoint ELSE run[run[r].base].checkpoint
Set(p, values) == process' = [process EXCEPT ![p] = values @@ process[p]]

MayTake(r) == /\ taken < Locks
              /\ \/ lock.nonce = 0
                 \/ now >= lock.since + Expiry
                 \/ lock.run = r
                 \/ ~On("lock")
Take(r) == /\ MayTake(r)
           /\ taken' = taken + 1
           /\ lock' = [nonce |-> taken + 1, run |-> r, since |-> now]
Release(p) == lock' = IF lock.nonce = process[p].nonce THEN NoLock ELSE lock
Works(p, r) == process' = [process EXCEPT ![p] = [Idle EXCEPT !.at = "step", !.run = r, !.nonce = taken + 1]]

Sweeps(r) == ~Dry \/ (IF On("approval") THEN run[r].approval = run[r].candidates ELSE run[r].approval # {None})
HasSwept(r) == run[r].receipts # {} \/ (run[r].ended /\ (~Dry \/ run[r].approval # {None}))

(* The newest run that was to delete, if it left something to build on, and nothing was restored since. *)
BaseFor(r) == LET earlier == {e \in 1..(r - 1) : ~Dry \/ run[e].approval # {None} \/ ~On("no dry base")}
                  newest == IF earlier = {} THEN 0 ELSE CHOOSE e \in earlier : \A f \in earlier : f <= e
              IN IF Optimized /\ newest # 0 /\ run[newest].checkpoint.there
                    /\ (newest > restorePoint \/ ~On("restored since")) THEN newest ELSE 0

Open == \E p \in Processes :
          /\ process[p].at = "idle" /\ opened < Runs
          /\ Take(opened + 1)
          /\ opened' = opened + 1
          /\ run' = [run EXCEPT ![opened + 1] = [NoRun EXCEPT !.start = now, !.base = BaseFor(opened + 1)]]
          /\ Works(p, opened + 1)
          /\ UNCHANGED <<now, objects, refs, fault, crashes, history>>

(* A run that was broken off, or was approved, goes on where it stopped. *)
Resume == \E p \in Processes, r \in 1..opened :
            /\ process[p].at = "idle" /\ ~run[r].ended
            /\ run[r].stage = 4 => Sweeps(r)
            /\ Take(r)
            /\ Works(p, r)
            /\ UNCHANGED <<now, objects, refs, fault, opened, run, crashes, history>>

(* store_df is made again, in a new attempt: whatever follows it has to be made again as well. *)
ListAgain == /\ May("list again")
             /\ \E p \in Processes :
                  LET r == process[p].run IN
                  /\ process[p].at = "step" /\ run[r].stage \in 1..4 /\ gone[r] = {} /\ run[r].start < now
                  /\ run' = [run EXCEPT ![r] = [@ EXCEPT !.start = now, !.listed = store, !.listedAt = now,
                                                !.stage = IF On("attempts") THEN 1 ELSE Min({@, 3})]]
             /\ UNCHANGED <<now, objects, refs, fault, opened, lock, taken, process, crashes, history>>

Next3(p, kind) == process[p].at = "step" /\ Of(p).stage < 3 /\ Order[Of(p).stage + 1] = kind

Position(kind) == CHOOSE i \in 1..3 : Order[i] = kind

(* Two processes may make the steps of one run, where one took the lock over. Frames that were made out of order are
   refused: whoever is about to make a later one has to begin again. *)
Makes(p, r, values, later) ==
  process' = [q \in Processes |-> IF q = p THEN values @@ process[p]
                                  ELSE IF process[q].run = r /\ process[q].at \in later THEN Idle ELSE process[q]]

List == \E p \in Processes :
          LET r == process[p].run
              before == Base(r)
          IN /\ Next3(p, "list")
             /\ run' = [run EXCEPT ![r] = [@ EXCEPT
                  !.listed = {a \in store : slice[a] \notin before.sealed} \cup before.pending,
                  !.slices = {slice[a] : a \in store},
                  !.listedAt = now, !.stage = Position("list")]]
             /\ Makes(p, r, [at |-> "step"], {"prepare", "dump branches"})
             /\ UNCHANGED <<now, objects, refs, fault, opened, lock, taken, crashes, history>>

(* The server says of one branch after the other what is staged there; it may leave it out for a moment. *)
Says(b) == {Uncommitted(b)} \cup (IF now = fault THEN {{}} ELSE {})

BeginPrepare == \E p \in Processes :
                  /\ Next3(p, "prepare")
                  /\ Set(p, [at |-> "prepare", branch |-> 1, known |-> {},
                             heads |-> IF ByRules /\ On("heads at the mark") THEN Heads ELSE {}])
                  /\ UNCHANGED <<now, objects, refs, fault, opened, run, lock, taken, crashes, history>>

Prepare == \E p \in Processes :
             LET r == process[p].run
                 b == process[p].branch
             IN /\ process[p].at = "prepare"
                /\ \E said \in Says(b) :
                     IF b + 1 \in Branches
                     THEN Set(p, [branch |-> b + 1, known |-> process[p].known \cup said]) /\ UNCHANGED run
                     ELSE /\ Makes(p, r, [at |-> "step", branch |-> 1, known |-> {}, heads |-> {}], {"dump branches"})
                          /\ run' = [run EXCEPT ![r] = [@ EXCEPT !.uncommitted = process[p].known \cup said,
                                                        !.before = process[p].heads,
                                                        !.preparedAt = now, !.stage = Position("prepare")]]
                /\ UNCHANGED <<now, objects, refs, fault, opened, lock, taken, crashes, history>>

(* A refs dump is no snapshot: commits are dumped first. Heads that it lacks are fetched. *)
DumpCommits == \E p \in Processes :
                 /\ Next3(p, "dump")
                 /\ Set(p, [at |-> "dump branches", commits |-> made])
                 /\ UNCHANGED <<now, objects, refs, fault, opened, run, lock, taken, crashes, history>>

(* What is live of commits that were dumped before, given the heads now, and what was a head before. *)
Fetched == IF On("fetch heads") THEN Heads \cup (UNION {line[b] : b \in Branches} \cap Addresses) ELSE {}
Committed(r, commits, before) ==
  LET known == commits \cup Fetched
      live == IF ByRules THEN {c \in known : c \in Heads \/ Active(c, run[r].start)} ELSE known
  IN live \cup before \cup (IF Unnamed THEN made \ known ELSE {})
Tokens == {<<b, sealed[b]>> : b \in {b \in Branches : sealed[b] # None}}

DumpBranches == \E p \in Processes :
                  LET r == process[p].run
                      before == Base(r)
                      live == Committed(r, process[p].commits, run[r].before)
                      new == IF ByRules THEN live ELSE live \ before.read
                  IN /\ process[p].at = "dump branches"
                     /\ run' = [run EXCEPT ![r] = [@ EXCEPT
                          !.committed = new \cup (IF ByRules THEN {} ELSE before.carried),
                          !.ids = live \cup (IF ByRules THEN {} ELSE before.read),
                          !.listed = @ \cup (IF ByRules THEN before.tracked \ live ELSE {}),
                          !.heads = Heads, !.tokens = Tokens, !.stage = Position("dump")]]
                     /\ Set(p, [at |-> "step", commits |-> {}])
                     /\ UNCHANGED <<now, objects, refs, fault, opened, lock, taken, crashes, history>>

Margin == IF On("skew") THEN Skew ELSE 0
OldEnough(r, a) == /\ On("age by name") => issued[a] + Window + Margin < run[r].start
                   /\ On("age by store") => modified[a] + Window + Margin < run[r].start

(* Staged with the content of a committed entry: the server does not list it, so its path is asked for. *)
Hidden(r, a) == On("hidden") /\ (\E h \in run[r].heads : SameContent(a, h)) /\ \E b \in Branches : Seen(b) = a

Mark == \E p \in Processes :
          LET r == process[p].run
              candidates == {a \in Of(p).listed \ (Of(p).committed \cup Of(p).uncommitted) :
                               OldEnough(r, a) /\ ~Hidden(r, a)}
          IN /\ process[p].at = "step" /\ Of(p).stage = 3
             /\ run' = [run EXCEPT ![r] = [@ EXCEPT
                  !.candidates = candidates, !.planned = @ \cup candidates, !.stage = 4, !.uncommitted = {}, !.before = {}, !.heads = {},
                  !.listed = IF Optimized THEN @ ELSE {}, !.committed = IF Optimized THEN @ ELSE {},
                  !.slices = IF Optimized THEN @ ELSE {}]]
             /\ wrong' = IF candidates \cap (Live \cup Linkable) = {} THEN wrong ELSE wrong \cup {"live marked"}
             /\ UNCHANGED <<now, objects, refs, fault, opened, lock, taken, process, crashes, gone, shown, copies,
                            restorePoint, back>>

(* What a run leaves to the next one. `done`: what counts as deleted. *)
Checkpoint(r, done) ==
  LET before == Base(r)
      limit(s) == s + (IF On("slice span") THEN 1 ELSE 0) + Window + Margin + Margin < run[r].start
      kept == IF On("sealed grows") THEN before.sealed ELSE {}
      closed == kept \cup {s \in run[r].slices : limit(s) /\ (On("sealed grows") \/ s \notin before.sealed)}
      held == IF On("pending without committed") THEN run[r].committed ELSE {}
  IN [there |-> TRUE,
      sealed |-> closed,
      pending |-> {a \in run[r].listed \ held : slice[a] \in closed} \ done,
      read |-> run[r].ids \cup (IF On("recheck reads nothing for good") THEN {} ELSE run[r].later),
      carried |-> IF On("carried") THEN {a \in run[r].committed : slice[a] \notin closed} ELSE {},
      tracked |-> IF ByRules /\ On("tracked") THEN run[r].committed ELSE {}]

EndDry == \E p \in Processes :
            LET r == process[p].run IN
            /\ process[p].at = "step" /\ Of(p).stage = 4 /\ ~Sweeps(r)
            /\ run' = IF On("no dry base") THEN run
                      ELSE [run EXCEPT ![r].checkpoint = Checkpoint(r, run[r].candidates)]
            /\ process' = [process EXCEPT ![p] = Idle]
            /\ Release(p)
            /\ UNCHANGED <<now, objects, refs, fault, opened, taken, crashes, history>>

Approve == /\ Dry
           /\ \E r \in 1..opened :
                /\ run[r].stage = 4 /\ ~run[r].ended /\ run[r].approval = {None}
                /\ run' = [run EXCEPT ![r].approval = run[r].candidates]
                /\ shown' = [shown EXCEPT ![r] = run[r].candidates]
           /\ UNCHANGED <<now, objects, refs, fault, opened, lock, taken, process, crashes, gone, copies, restorePoint,
                          back, wrong>>

---------------------------------------------------------------------------
(* The sweep *)

MaySweep(r) == /\ On("restored since") => r > restorePoint
               /\ On("overtaken") => \A newer \in (r + 1)..opened : ~HasSwept(newer)
Waited(r) == On("wait") => now >= Wait + (IF WaitFrom = "listing" THEN run[r].listedAt ELSE run[r].preparedAt)

GiveUp(p) == /\ process' = [process EXCEPT ![p] = Idle]
             /\ Release(p)

Refuse == \E p \in Processes :
            /\ process[p].at = "step" /\ Of(p).stage = 4 /\ Sweeps(process[p].run) /\ ~MaySweep(process[p].run)
            /\ GiveUp(p)
            /\ UNCHANGED <<now, objects, refs, fault, opened, run, taken, crashes, history>>

SkipsRecheck(r) == ~On("recheck") \/ (~On("recheck on resume") /\ run[r].receipts # {})

BeginRecheck == \E p \in Processes :
                  LET r == process[p].run IN
                  /\ process[p].at = "step" /\ Of(p).stage = 4 /\ Sweeps(r) /\ MaySweep(r) /\ Waited(r)
                  /\ Of(p).candidates \ Of(p).receipts # {}
                  /\ IF SkipsRecheck(r) THEN Set(p, [at |-> "sweep", asOf |-> now, again |-> {}, todo |-> Of(p).candidates])
                     ELSE Set(p, [at |-> "look", asOf |-> now, branch |-> 1, known |-> {}, todo |-> Of(p).candidates,
                                  ids |-> Of(p).ids, tokens |-> Of(p).tokens,
                                  heads |-> IF ByRules /\ On("heads before") THEN Heads ELSE {}])
                  /\ UNCHANGED <<now, objects, refs, fault, opened, run, lock, taken, crashes, history>>

Look == \E p \in Processes :
          LET b == process[p].branch IN
          /\ process[p].at = "look"
          /\ \E said \in Says(b) :
               Set(p, [known |-> process[p].known \cup said,
                       at |-> IF b + 1 \in Branches THEN "look" ELSE "dump commits again",
                       branch |-> IF b + 1 \in Branches THEN b + 1 ELSE 1])
          /\ UNCHANGED <<now, objects, refs, fault, opened, run, lock, taken, crashes, history>>

DumpCommitsAgain == \E p \in Processes :
                      /\ process[p].at = "dump commits again"
                      /\ Set(p, [at |-> "dump branches again", commits |-> made])
                      /\ UNCHANGED <<now, objects, refs, fault, opened, run, lock, taken, crashes, history>>

(* Ranges that the mark has read are not read again, so they must be those that the candidates were made with. A commit
   that was under way at the mark and still is ends it. *)
DumpBranchesAgain ==
  \E p \in Processes :
    LET r == process[p].run
        live == Committed(r, process[p].commits, process[p].heads)
        again == process[p].known \cup (live \ Of(p).ids)
    IN /\ process[p].at = "dump branches again"
       /\ IF \/ On("commits under way") /\ Of(p).tokens \cap Tokens # {}
             \/ On("inputs") /\ (Of(p).ids # process[p].ids \/ Of(p).tokens # process[p].tokens)
          THEN GiveUp(p) /\ UNCHANGED run
          ELSE /\ Set(p, [at |-> "sweep", again |-> again \cap process[p].todo, ids |-> {}, tokens |-> {}, known |-> {}, commits |-> {},
                          heads |-> {}])
               /\ run' = IF Optimized THEN [run EXCEPT ![r].later = live \ Of(p).ids] ELSE run
               /\ UNCHANGED lock
       /\ UNCHANGED <<now, objects, refs, fault, opened, taken, crashes, history>>

ToDelete(p) == process[p].todo \ (Of(p).receipts \cup process[p].again)
Holds(p) == IF ~On("verify") THEN TRUE
            ELSE IF On("nonce") THEN lock.nonce = process[p].nonce ELSE lock.run = process[p].run
(* A lock is renewed in time, unless its machine stands still. *)
Renewed(p) == "stand still" \in Clients \/ lock.nonce # process[p].nonce \/ now < lock.since + Expiry
Believed(p) == On("valid") => now <= process[p].asOf + Valid

(* A batch is one object here: the lock is looked at right before, the receipt is written right after. *)
BeginBatch == \E p \in Processes :
                /\ process[p].at = "sweep" /\ ToDelete(p) # {} /\ Renewed(p)
                /\ IF ~Holds(p) THEN process' = [process EXCEPT ![p] = Idle] /\ UNCHANGED run
                   ELSE IF ~Believed(p) THEN Set(p, [at |-> "step", again |-> {}, asOf |-> 0]) /\ UNCHANGED run
                   ELSE /\ Set(p, [at |-> IF Quarantine /\ On("copy first") THEN "copy" ELSE "delete",
                                   object |-> Min(ToDelete(p))])
                        /\ run' = IF On("receipt after") THEN run
                                  ELSE [run EXCEPT ![process[p].run].receipts = @ \cup {Min(ToDelete(p))}]
                /\ UNCHANGED <<now, objects, refs, fault, opened, lock, taken, crashes, history>>

Copy == \E p \in Processes :
          LET r == process[p].run
              a == process[p].object
          IN /\ process[p].at = "copy"
             /\ copies' = IF a \in store THEN [copies EXCEPT ![r] = @ \cup {a}] ELSE copies
             /\ Set(p, [at |-> IF a \in store \cup copies[r] THEN "delete" ELSE "sweep",
                        again |-> IF a \in store \cup copies[r] THEN process[p].again ELSE process[p].again \cup {a}])
             /\ UNCHANGED <<now, objects, refs, fault, opened, run, lock, taken, crashes, gone, shown, restorePoint,
                            back, wrong>>

Delete == \E p \in Processes :
            LET r == process[p].run
                a == process[p].object
                lost == lock.nonce # process[p].nonce
            IN /\ process[p].at = "delete"
               /\ store' = store \ {a}
               /\ gone' = [gone EXCEPT ![r] = @ \cup ({a} \cap store)]
               /\ back' = IF r > restorePoint THEN back \ {a} ELSE back
               /\ wrong' = IF lost /\ process[p].late > 0 THEN wrong \cup {"deleted without the lock"} ELSE wrong
               /\ Set(p, [at |-> "write", late |-> IF lost THEN process[p].late + 1 ELSE process[p].late])
               /\ UNCHANGED <<now, issued, modified, slice, linked, refs, fault, opened, run, lock, taken, crashes,
                              shown, copies, restorePoint>>

WriteReceipt == \E p \in Processes :
                  /\ process[p].at = "write"
                  /\ run' = [run EXCEPT ![process[p].run].receipts = @ \cup {process[p].object}]
                  /\ Set(p, [at |-> "sweep", object |-> 0])
                  /\ UNCHANGED <<now, objects, refs, fault, opened, lock, taken, crashes, history>>

EndSweep == \E p \in Processes :
              LET r == process[p].run IN
              /\ \/ process[p].at = "sweep" /\ ToDelete(p) = {}
                 \/ process[p].at = "step" /\ Of(p).stage = 4 /\ Sweeps(r) /\ Of(p).candidates \subseteq Of(p).receipts
              /\ run' = [run EXCEPT ![r] = [@ EXCEPT !.ended = TRUE, 
                           !.checkpoint = IF Optimized THEN Checkpoint(r, run[r].receipts) ELSE NoCheckpoint,
                           !.listed = {}, !.committed = {}, !.slices = {}, !.ids = {}, !.tokens = {}, !.later = {}]]
              /\ process' = [process EXCEPT ![p] = Idle]
              /\ Release(p)
              /\ UNCHANGED <<now, objects, refs, fault, opened, taken, crashes, history>>

Renew == \E p \in Processes :
           /\ Expiry <= End
           /\ process[p].at # "idle" /\ lock.nonce = process[p].nonce /\ lock.since < now
           /\ lock' = [lock EXCEPT !.since = now]
           /\ UNCHANGED <<now, objects, refs, fault, opened, run, taken, process, crashes, history>>

(* A killed process forgets what it had in memory; its lock stays. *)
Crash == \E p \in Processes :
           /\ process[p].at # "idle" /\ crashes < Crashes
           /\ crashes' = crashes + 1
           /\ process' = [process EXCEPT ![p] = Idle]
           /\ UNCHANGED <<now, objects, refs, fault, opened, run, lock, taken, history>>

(* A person brings back what a run moved. No run that was opened before may sweep or be built on any more. Its copies
   stay: a process that stood still may end its batch later. *)
Restore == /\ May("restore")
           /\ \E r \in 1..opened :
                /\ copies[r] # {}
                /\ Take(0)
                /\ store' = store \cup copies[r]
                /\ back' = back \cup copies[r]
                /\ copies' = IF On("copies stay") THEN copies ELSE [copies EXCEPT ![r] = {}]
                /\ gone' = [gone EXCEPT ![r] = {}]
                /\ restorePoint' = opened
           /\ UNCHANGED <<now, issued, modified, slice, linked, refs, fault, opened, run, process, crashes, shown,
                          wrong>>

FreeRestored == /\ lock.nonce # 0 /\ lock.run = 0
                /\ lock' = NoLock
                /\ UNCHANGED <<now, objects, refs, fault, opened, run, taken, process, crashes, history>>

Collector == Open \/ Resume \/ ListAgain \/ List \/ BeginPrepare \/ Prepare \/ DumpCommits \/ DumpBranches \/ Mark
               \/ EndDry \/ Approve \/ Refuse \/ BeginRecheck \/ Look \/ DumpCommitsAgain \/ DumpBranchesAgain
               \/ BeginBatch \/ Copy \/ Delete \/ WriteReceipt \/ EndSweep \/ Renew \/ Crash \/ Restore \/ FreeRestored

---------------------------------------------------------------------------
(* In the beginning the old objects are committed, staged or garbage, in every way there is. *)
Init ==
  /\ now = Begin
  /\ issued = [a \in Addresses |-> IF a \in Old \/ "upload" \in Clients THEN 0 ELSE None]
  /\ modified = [a \in Addresses |-> IF a \in Old THEN 0 ELSE None]
  /\ slice = [a \in Addresses |-> IF a \in Old \/ "upload" \in Clients THEN 0 ELSE None]
  /\ linked = [a \in Addresses |-> FALSE]
  /\ store = Old
  /\ head \in [Branches -> Old \cup {0, None}]
  /\ head[1] # None
  /\ line = [b \in Branches |-> {}]
  /\ staged \in [Branches -> Old \cup {None}]
  /\ \A b \in Branches : head[b] = None => staged[b] = None
  /\ sealed = [b \in Branches |-> None]
  /\ moving = [b \in Branches |-> None]
  /\ made \in SUBSET Old
  /\ Heads \subseteq made
  /\ left = [a \in Addresses |-> None]
  /\ fault \in IF Faulty THEN Begin..End ELSE {None}
  /\ opened = 0
  /\ run = [r \in Ids |-> NoRun]
  /\ lock = NoLock
  /\ taken = 0
  /\ process = [p \in Processes |-> Idle]
  /\ crashes = 0
  /\ gone = [r \in Ids |-> {}]
  /\ shown = [r \in Ids |-> {}]
  /\ copies = [r \in Ids |-> {}]
  /\ restorePoint = 0
  /\ back = {}
  /\ wrong = {}

Next == Tick \/ Client \/ Collector
Spec == Init /\ [][Next]_vars

---------------------------------------------------------------------------
(* Nothing of interest happens after the last run has ended. *)
Interesting == ~(opened = Runs /\ "restore" \notin Clients /\ \A r \in Ids : run[r].ended)

(* Invariants *)

NoLiveDeleted == Live \cup Linkable \subseteq store

(* Where commits and moves are one step: nothing is marked that was live then, whatever the recheck finds later. *)
NoLiveMarked == "live marked" \notin wrong

(* At most the one batch under way when the lock is lost is not fenced. *)
OnlyLockHolderDeletes == "deleted without the lock" \notin wrong

(* Whatever is in a sealed slice is known: pending, or committed for good. A set that is sealed only grows. *)
SealedSliceNeverChanges ==
  \A r \in Ids : run[r].checkpoint.there /\ r > restorePoint =>
    /\ Base(r).sealed \subseteq run[r].checkpoint.sealed
    /\ \A a \in store : slice[a] \in run[r].checkpoint.sealed =>
         a \in run[r].checkpoint.pending \cup (IF ByRules THEN run[r].checkpoint.tracked ELSE run[r].checkpoint.read)

(* Whatever a run deletes is among its candidates, and in the end every receipt is of an object that it deleted. *)
ResumeDeletesOnlyPlanned ==
  \A r \in 1..opened : gone[r] \subseteq run[r].planned
ReceiptsAreTrue ==
  \A r \in 1..opened : r > restorePoint => run[r].receipts \cap store = {}

ApprovalBindsToPlan == Dry => \A r \in 1..opened : gone[r] \subseteq shown[r]

UndoBringsBack == Quarantine => (\A r \in 1..opened : gone[r] \subseteq copies[r]) /\ back \subseteq store

(* What was restored can be restored once more, where a process that stood still deletes it again. *)
NothingRestoredIsLost == back \subseteq store \cup UNION {copies[r] : r \in 1..opened}

(* To be violated: garbage goes, in a run that builds on another one as well, and comes back. *)
NothingIsDeleted == \A r \in Ids : gone[r] = {}
NoRunBuildsOnAnother == \A r \in Ids : run[r].base = 0 \/ gone[r] = {}
NothingComesBack == back = {}
===========================================================================
