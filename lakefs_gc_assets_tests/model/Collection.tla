---------------------------- MODULE Collection ----------------------------
(* The protocol of a collection: a lakeFS server whose clients go on working, the store, and processes that collect.

   docs/evidence/model.md says what this model shows, what it leaves out, and which test of the code belongs to each invariant.
   Scopes and the rules that are taken out one by one (`Off`) are in scopes.py.

   A repository has one path here. A commit is its line: the address that each commit of the line holds (0 for none) and
   the time it was made, the newest first. Commits of one content share a range, as in lakeFS. Where every commit counts,
   times and parents do not, so a commit is its content there. An entry that is staged may hide one that is sealed. *)
EXTENDS Naturals, FiniteSets, Sequences, TLC

CONSTANTS
  Addresses, \* 1..n: places of objects
  Old,       \* the addresses whose objects were there long before
  Branches,  \* 1..n; branch 1 is never deleted
  Begin, End,\* the abstract clock runs from Begin to End
  Window,    \* how long after its issue an address may be linked; also min_age_hours
  Skew,      \* how far a server's clock may be behind; also clock_skew_minutes
  Unnamed,   \* TRUE: ranges that no commit names count as live
  ByRules,   \* TRUE: commits that no rule keeps expire
  Retain,    \* how long a commit stays that was replaced, by the default rule
  Own,       \* the same by the rule of branch 2
  Last,      \* how many commits of its line each branch keeps, whatever their age; 1 is the head alone
  Commits,   \* up to how many commits there are, before a further one is made by rules
  Twins,     \* TRUE: all objects have the same content
  Torn,      \* TRUE: commits and moves of branch heads take two steps, and others act in between
  Longest,   \* how long these take at most
  Assumed,   \* how long runs believe that they take
  Faulty,    \* TRUE: at one moment the server may leave out what is staged without saying so
  Clients,   \* names of what clients do
  Runs,      \* how many runs are opened, at most
  Processes, \* 1..n
  Locks,     \* how often the lock is taken, at most
  Expiry,    \* after how long without renewal others may take it
  Valid,     \* how long a recheck is believed
  Wait,      \* how long after the mark it begins, at the earliest
  WaitFrom,  \* "listing" or "uncommitted": from where that is counted
  Reads,     \* the order in which a run asks for reasons to stay, before it asks for uncommitted data
  Dry,       \* TRUE: runs are dry runs, which persons approve
  Quarantine,\* TRUE: objects are copied before they are deleted
  Optimized, \* TRUE: a run builds on the newest one that swept
  Crashes,   \* how many processes are killed, at most
  Off        \* the rules that are taken out

None == 100
Tombstone == 101
NoCommit == <<>>
Root == <<[holds |-> 0, at |-> 0]>>
On(rule) == rule \notin Off
Min(S) == CHOOSE x \in S : \A y \in S : x <= y
Order == IF ~On("list first") THEN <<"prepare", "list", "dump">>
         ELSE IF ~On("uncommitted first") THEN <<"list", "dump", "prepare">>
         ELSE <<"list", "prepare", "dump">>

VARIABLES
  now,
  issued, modified, slice, linked, store,   \* objects: time in the name, LastModified, slice, TRUE for issued links
  head, line, staged, sealed,               \* branches: their commit, its ancestors if all count, what is staged
  moving, firm, began,                      \* where a head is moved to, TRUE if that is live; since when, or since the seal
  made, tags, ruled,                        \* commits there are; tagged ones; TRUE as long as rules hold
  log,                                      \* by which commits must stay: see Required
  fault,                                    \* the moment at which the server may leave entries out
  opened, run, lock, taken, process, crashes,
  gone, shown, copies, restorePoint, back,  \* what runs deleted, what persons saw, copies, restorations
  wrong                                     \* what must never happen, and shows in no other variable

(* Clients begin once a run is opened, unless the scope says otherwise. *)
Acts == opened > 0 \/ "act before" \in Clients
May(name) == name \in Clients /\ Acts

objects == <<issued, modified, slice, linked, store>>
moves == <<moving, firm, began>>
reasons == <<tags, ruled>>
refs == <<head, line, staged, sealed, moves, made, reasons, log>>
history == <<gone, shown, copies, restorePoint, back, wrong>>
vars == <<now, objects, refs, fault, opened, run, lock, taken, process, crashes, history>>

---------------------------------------------------------------------------
(* The server and its clients *)

Exists(b) == head[b] # NoCommit
Heads == {head[b] : b \in Branches} \ {NoCommit}
Holds(commit) == IF commit = NoCommit THEN 0 ELSE commit[1].holds
Held(commits) == {Holds(c) : c \in commits} \ {0}
Newest(b) == IF staged[b] # None THEN staged[b] ELSE sealed[b]
Seen(b) == IF Newest(b) = Tombstone THEN 0 ELSE IF Newest(b) # None THEN Newest(b) ELSE Holds(head[b])
SameContent(x, y) == x \in Addresses /\ y \in Addresses /\ (x = y \/ Twins)

(* What rules and policy say, if they hold: they can be made shorter, which leaves heads and tags. *)
WindowOf(hold, b) == IF ~hold THEN 0 ELSE IF b = 2 THEN Own ELSE Retain
Default(hold) == IF hold THEN Retain ELSE 0
Counted(hold) == IF hold THEN Last ELSE 1

(* The requirement. `log` is written by the world and read by no run. It says of each commit which contents its line has
   shown, since when, and until when (None: nothing has replaced it). What a branch showed within its window stays, and so
   do tags. A line that nobody continues goes by the default rule, as if its last commit had been replaced when made. *)
Shown(places, window, count) ==
  {places[i].holds : i \in {i \in DOMAIN places : i <= count \/ (places[i].until # None /\ places[i].until + window >= now)}}
Abandoned == {c \in made \ Heads : \A other \in made : Tail(other) # c}
KeptOn(b, c) == Shown(log[c], WindowOf(ruled, b), Counted(ruled))
Required == (UNION {KeptOn(b, head[b]) : b \in {b \in Branches : Exists(b)}}
               \cup UNION {Shown(log[c], Default(ruled), IF log[c][1].since + Default(ruled) >= now THEN 1 ELSE 0) :
                             c \in Abandoned}
               \cup Held(tags)) \ {0}

(* What is live if a commit is the head of a branch. *)
Brings(b, c) == (IF ByRules THEN KeptOn(b, c) ELSE {Holds(c)}) \ {0}

(* A commit does not take up what is sealed with the content of the head. What is sealed and hidden is live as long as
   its commit is under way: nothing else brings it back. *)
Staged(b) == {staged[b]} \cup (IF staged[b] = None \/ (began[b] # None /\ ~SameContent(sealed[b], Holds(head[b])))
                               THEN {sealed[b]} ELSE {})
StagedAnywhere == UNION {Staged(b) : b \in Branches} \cap Addresses
Merging(b) == moving[b] # NoCommit /\ moving[b][1].at = None
Coming(b) == IF Merging(b) THEN Held({moving[b]}) ELSE Brings(b, moving[b])
Live == StagedAnywhere \cup UNION {Coming(b) : b \in {b \in Branches : firm[b]}}
          \cup (IF ByRules THEN Required ELSE Held(made))

(* What a client may still stage by the server's rules. Skew is how far the server's clock may be behind. *)
Linkable == {a \in Addresses : May("link") /\ modified[a] # None
               /\ IF linked[a] THEN now <= issued[a] + Window + Skew ELSE now <= modified[a] + Window}

(* What prepare_uncommited says of a branch: the newest entry, unless it has the content that the head has. *)
Uncommitted(b) == {x \in {Newest(b)} \cap Addresses : ~SameContent(x, Holds(head[b]))}

Rechecked(p) == process[p].at \in {"read again", "look", "dump commits again", "dump branches again", "sweep", "delete", "write"}
                /\ now <= process[p].asOf + Valid
(* lakeFS brings what expired back at any time; nobody can keep what it brings back after the last recheck began. *)
Revivable(contents) == contents \subseteq Live
                         \cup IF May("revive late") \/ (May("revive") /\ \A p \in Processes : ~Rechecked(p)) THEN store ELSE {}

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
              /\ now <= issued[a] + Window \/ (~linked[a] /\ May("long upload"))
              /\ modified' = [modified EXCEPT ![a] = dated]
              /\ store' = store \cup {a}
         /\ UNCHANGED <<now, issued, slice, linked, refs, fault, opened, run, lock, taken, process, crashes, history>>

Stage(b, x) == /\ staged' = [staged EXCEPT ![b] = x]
               /\ UNCHANGED <<now, objects, head, line, sealed, moves, made, reasons, log, fault, opened, run, lock, taken,
                              process, crashes, history>>

(* A server's own upload in parts: it is there all at once, dated back to its begin, and staged. *)
Upload == /\ May("upload")
          /\ \E b \in Branches, a \in Addresses :
               /\ Exists(b) /\ issued[a] # None /\ modified[a] = None /\ ~linked[a]
               /\ modified' = [modified EXCEPT ![a] = issued[a]]
               /\ store' = store \cup {a}
               /\ staged' = [staged EXCEPT ![b] = a]
          /\ UNCHANGED <<now, issued, slice, linked, head, line, sealed, moves, made, reasons, log, fault, opened, run,
                         lock, taken, process, crashes, history>>

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

(* A reset drops what is sealed as well, and the commit that sealed it fails. *)
Reset == /\ May("reset")
         /\ \E b \in Branches :
              /\ Newest(b) # None
              /\ staged' = [staged EXCEPT ![b] = None]
              /\ sealed' = [sealed EXCEPT ![b] = None]
              /\ began' = [began EXCEPT ![b] = IF moving[b] = NoCommit THEN None ELSE @]
         /\ UNCHANGED <<now, objects, head, line, moving, firm, made, reasons, log, fault, opened, run, lock, taken, process,
                        crashes, history>>

(* A commit seals the staging token; later it writes what is sealed there. Equal content keeps the entry there was.
   Nothing tells that a commit is under way: no run may look at `sealed`, `moving` or `began`. *)
Sealed(b, x) == IF x = Tombstone THEN 0 ELSE IF SameContent(x, Holds(head[b])) THEN Holds(head[b]) ELSE x
MoreCommits == ByRules => Cardinality(made) < Commits

BeginCommit == /\ May("commit") /\ Torn /\ MoreCommits
               /\ \E b \in Branches :
                    /\ Newest(b) # None /\ began[b] = None
                    /\ sealed' = [sealed EXCEPT ![b] = Newest(b)]
                    /\ staged' = [staged EXCEPT ![b] = None]
                    /\ began' = [began EXCEPT ![b] = now]
               /\ UNCHANGED <<now, objects, head, line, moving, firm, made, reasons, log, fault, opened, run, lock, taken,
                              process, crashes, history>>

(* A new commit is the head of a branch, and replaces the one that was. *)
NewHead(b, holds) ==
  LET c == IF ByRules THEN <<[holds |-> holds, at |-> now]>> \o head[b] ELSE <<[holds |-> holds, at |-> 0]>>
      replaced == <<[Head(log[head[b]]) EXCEPT !.until = now]>> \o Tail(log[head[b]])
  IN /\ head' = [head EXCEPT ![b] = c]
     /\ made' = made \cup {c}
     /\ log' = IF ByRules THEN (c :> <<[holds |-> holds, since |-> now, until |-> None]>> \o replaced) @@ log ELSE log
     /\ line' = IF ByRules THEN line ELSE [line EXCEPT ![b] = @ \cup {c}]
     /\ began' = [began EXCEPT ![b] = None]

Commit == /\ May("commit")
          /\ \E b \in Branches :
               LET from == IF Torn THEN sealed ELSE staged
               IN /\ from[b] # None
                  /\ IF Torn THEN began[b] # None /\ moving[b] = NoCommit ELSE MoreCommits
                  /\ NewHead(b, Sealed(b, from[b]))
                  /\ sealed' = [sealed EXCEPT ![b] = None]
                  /\ staged' = IF Torn THEN staged ELSE [staged EXCEPT ![b] = None]
          /\ UNCHANGED <<now, objects, moving, firm, reasons, fault, opened, run, lock, taken, process, crashes, history>>

(* A hook refuses: what was sealed stays so, and the next commit takes it up. *)
RefuseCommit == /\ May("refuse")
                /\ \E b \in Branches :
                     /\ began[b] # None /\ moving[b] = NoCommit
                     /\ began' = [began EXCEPT ![b] = None]
                /\ UNCHANGED <<now, objects, head, line, staged, sealed, moving, firm, made, reasons, log, fault, opened, run,
                               lock, taken, process, crashes, history>>

(* Where every commit counts, merges and heads that are set to another commit; by rules, the latter. The branch is clean
   in the beginning. Where clients "hold", what is live in the beginning stays so until the head is there. *)
BeginMove == /\ May("move") /\ Torn
             /\ \E b \in Branches, c \in made :
                  /\ Exists(b) /\ Newest(b) = None /\ began[b] = None /\ c # head[b]
                  /\ moving' = [moving EXCEPT ![b] = c]
                  /\ firm' = [firm EXCEPT ![b] = May("hold") /\ Brings(b, c) \subseteq Live]
                  /\ began' = [began EXCEPT ![b] = now]
             /\ UNCHANGED <<now, objects, head, line, staged, sealed, made, reasons, log, fault, opened, run, lock, taken,
                            process, crashes, history>>

Move == /\ May("move")
        /\ \E b \in Branches, c \in made :
             /\ IF Torn THEN moving[b] = c ELSE Exists(b) /\ Newest(b) = None /\ c # head[b]
             /\ Revivable(Brings(b, c))
             /\ head' = [head EXCEPT ![b] = c]
             /\ moving' = [moving EXCEPT ![b] = NoCommit]
             /\ firm' = [firm EXCEPT ![b] = FALSE]
             /\ began' = [began EXCEPT ![b] = None]
             /\ line' = IF ByRules THEN line ELSE [line EXCEPT ![b] = @ \cup {c}]
        /\ UNCHANGED <<now, objects, staged, sealed, made, reasons, log, fault, opened, run, lock, taken, process, crashes,
                       history>>

(* By rules, a merge, a revert or a cherry-pick makes a commit of what another one holds, which is live in the beginning.
   From then on it is needed, whatever becomes of the other one. *)
BeginMerge == /\ May("merge") /\ MoreCommits
              /\ \E b \in Branches, c \in made :
                   /\ Exists(b) /\ Newest(b) = None /\ began[b] = None /\ Holds(c) \in Live
                   /\ moving' = [moving EXCEPT ![b] = <<[holds |-> Holds(c), at |-> None]>>]
                   /\ firm' = [firm EXCEPT ![b] = TRUE]
                   /\ began' = [began EXCEPT ![b] = now]
              /\ UNCHANGED <<now, objects, head, line, staged, sealed, made, reasons, log, fault, opened, run, lock, taken,
                             process, crashes, history>>

Merge == /\ \E b \in Branches :
              /\ Merging(b)
              /\ NewHead(b, Holds(moving[b]))
              /\ moving' = [moving EXCEPT ![b] = NoCommit]
              /\ firm' = [firm EXCEPT ![b] = FALSE]
         /\ UNCHANGED <<now, objects, staged, sealed, reasons, fault, opened, run, lock, taken, process, crashes, history>>

NewBranch == /\ May("branch")
             /\ \E b \in Branches, c \in made :
                  /\ ~Exists(b) /\ Revivable(Brings(b, c))
                  /\ head' = [head EXCEPT ![b] = c]
                  /\ line' = IF ByRules THEN line ELSE [line EXCEPT ![b] = {c}]
             /\ UNCHANGED <<now, objects, staged, sealed, moves, made, reasons, log, fault, opened, run, lock, taken, process,
                            crashes, history>>

DeleteBranch == /\ May("branch") \/ May("delete branch")
                /\ \E b \in Branches \ {1} :
                     /\ Exists(b)
                     /\ head' = [head EXCEPT ![b] = NoCommit]
                     /\ line' = [line EXCEPT ![b] = {}]
                     /\ staged' = [staged EXCEPT ![b] = None]
                     /\ sealed' = [sealed EXCEPT ![b] = None]
                     /\ moving' = [moving EXCEPT ![b] = NoCommit]
                     /\ firm' = [firm EXCEPT ![b] = FALSE]
                     /\ began' = [began EXCEPT ![b] = None]
                /\ UNCHANGED <<now, objects, made, reasons, log, fault, opened, run, lock, taken, process, crashes, history>>

(* A commit that a policy pins is one that is tagged here. *)
AddTag == /\ May("tag")
          /\ \E c \in made \ tags : Revivable(Held({c})) /\ tags' = tags \cup {c}
          /\ UNCHANGED <<now, objects, head, line, staged, sealed, moves, made, ruled, log, fault, opened, run, lock, taken,
                         process, crashes, history>>

DeleteTag == /\ May("untag")
             /\ \E c \in tags : tags' = tags \ {c}
             /\ UNCHANGED <<now, objects, head, line, staged, sealed, moves, made, ruled, log, fault, opened, run, lock, taken,
                            process, crashes, history>>

ShortenRules == /\ May("shorten") /\ ruled
                /\ ruled' = FALSE
                /\ UNCHANGED <<now, objects, head, line, staged, sealed, moves, made, tags, log, fault, opened, run, lock,
                               taken, process, crashes, history>>

(* A batch under way ends while its recheck is valid and its lock holds, unless its machine stands still. *)
Tick == /\ now < End /\ Acts
        /\ \A b \in Branches : began[b] # None => now < began[b] + Longest
        /\ May("stand still") \/ \A p \in Processes : process[p].at \in {"copy", "delete"} =>
             now < process[p].asOf + Valid /\ (lock.nonce = process[p].nonce => now + 1 < lock.since + Expiry)
        /\ now' = now + 1
        /\ UNCHANGED <<objects, refs, fault, opened, run, lock, taken, process, crashes, history>>

Client == Issue \/ Write \/ Upload \/ Link \/ StageOld \/ Restage \/ Remove \/ Reset \/ BeginCommit \/ Commit
            \/ RefuseCommit \/ BeginMove \/ Move \/ BeginMerge \/ Merge \/ NewBranch \/ DeleteBranch \/ AddTag \/ DeleteTag \/ ShortenRules

---------------------------------------------------------------------------
(* Runs. What a run stored is in `run` and outlives its processes; `process` is what a process has in memory. *)

(* What keeps commits: branches, tags, rules and policy. *)
NoReasons == [head |-> [b \in Branches |-> NoCommit], tags |-> {}, ruled |-> FALSE]
Reasons == [head |-> head, tags |-> tags, ruled |-> ruled]

NoCheckpoint == [there |-> FALSE, sealed |-> {}, pending |-> {}, read |-> {}, carried |-> {}, tracked |-> {}]
NoRun == [stage |-> 0, ended |-> FALSE, start |-> 0, base |-> 0, listedAt |-> 0, preparedAt |-> 0, slices |-> {},
          listed |-> {}, uncommitted |-> {}, committed |-> {}, ids |-> {}, before |-> NoReasons, heads |-> {},
          candidates |-> {}, planned |-> {}, receipts |-> {}, approval |-> {None}, later |-> {}, checkpoint |-> NoCheckpoint]
Idle == [at |-> "idle", run |-> 0, nonce |-> 0, branch |-> 1, known |-> {}, commits |-> {}, before |-> NoReasons, step |-> 1,
         asOf |-> 0, todo |-> {}, ids |-> {}, again |-> {}, object |-> 0, late |-> 0]
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

(* Reasons to stay are asked for before uncommitted data, which takes several calls. *)
Reading == CASE Reads = "heads" -> <<"heads">>
             [] Reads = "tags, heads" -> <<"tags", "heads">>
             [] Reads = "heads, tags" -> <<"heads", "tags">>
             [] Reads = "tags, heads, tags" -> <<"tags", "heads", "tags">>

BeginPrepare == \E p \in Processes :
                  /\ Next3(p, "prepare")
                  /\ Set(p, [at |-> IF ByRules /\ On("reasons at the mark") THEN "read" ELSE "prepare", branch |-> 1, known |-> {},
                             before |-> NoReasons, step |-> 1])
                  /\ UNCHANGED <<now, objects, refs, fault, opened, run, lock, taken, crashes, history>>

Read == \E p \in Processes :
          LET step == process[p].step
              before == process[p].before
          IN /\ process[p].at \in {"read", "read again"}
             /\ Set(p, [before |-> IF Reading[step] = "tags"
                                   THEN [before EXCEPT !.tags = IF On("tags before") THEN @ \cup tags ELSE @]
                                   ELSE [before EXCEPT !.head = head, !.ruled = ruled],
                        step |-> IF step < Len(Reading) THEN step + 1 ELSE 1,
                        at |-> IF step < Len(Reading) THEN process[p].at
                               ELSE IF process[p].at = "read" THEN "prepare" ELSE "look"])
             /\ UNCHANGED <<now, objects, refs, fault, opened, run, lock, taken, crashes, history>>

Prepare == \E p \in Processes :
             LET r == process[p].run
                 b == process[p].branch
             IN /\ process[p].at = "prepare"
                /\ \E said \in Says(b) :
                     IF b + 1 \in Branches
                     THEN Set(p, [branch |-> b + 1, known |-> process[p].known \cup said]) /\ UNCHANGED run
                     ELSE /\ Makes(p, r, [at |-> "step", branch |-> 1, known |-> {}, before |-> NoReasons], {"dump branches"})
                          /\ run' = [run EXCEPT ![r] = [@ EXCEPT !.uncommitted = process[p].known \cup said,
                                                        !.before = process[p].before,
                                                        !.preparedAt = now, !.stage = Position("prepare")]]
                /\ UNCHANGED <<now, objects, refs, fault, opened, lock, taken, crashes, history>>

(* A refs dump is no snapshot: commits are dumped first. Heads that it lacks are fetched. *)
DumpCommits == \E p \in Processes :
                 /\ Next3(p, "dump")
                 /\ Set(p, [at |-> "dump branches", commits |-> made])
                 /\ UNCHANGED <<now, objects, refs, fault, opened, run, lock, taken, crashes, history>>

(* What a run makes of commits that it knows, by the dates that they bear: reasons keep their heads and tags, parents of
   commits within the window of their branch, and as many of a line as are counted. A commit that is neither a head nor a
   parent is dated by itself. *)
Ancestors(c) == {SubSeq(c, i, Len(c)) : i \in DOMAIN c}
Walked(c, window, count, at) ==
  {c[i].holds : i \in {i \in DOMAIN c :
     i <= count \/ (i > 1 /\ c[IF On("dated by the next") THEN i - 1 ELSE i].at + window >= at)}}
Kept(known, why, at) ==
  LET heads == {why.head[b] : b \in Branches} \ {NoCommit}
      leaves == IF On("dangling") THEN {c \in known \ heads : \A other \in known : Tail(other) # c} ELSE {}
  IN (UNION {Walked(why.head[b], WindowOf(why.ruled, b), Counted(why.ruled), at) : b \in Branches}
        \cup UNION {Walked(c, Default(why.ruled), IF c[1].at + Default(why.ruled) >= at THEN 1 ELSE 0, at) : c \in leaves}
        \cup IF On("tags") THEN Held(why.tags) ELSE {}) \ {0}
(* Of reasons there were before, with their own rules. *)
KeptBefore(known, why, at) ==
  IF On("rules before") THEN Kept(known, why, at)
  ELSE Held(({why.head[b] : b \in Branches} \ {NoCommit}) \cup why.tags)

(* What is live of commits that were dumped before, given the refs now, and those before. *)
Fetched == IF ~On("fetch heads") THEN {}
           ELSE IF ByRules THEN UNION {Ancestors(c) : c \in Heads}
           ELSE Heads \cup UNION {line[b] : b \in Branches}
Committed(r, commits, before) ==
  LET known == commits \cup Fetched
      live == IF ByRules THEN Kept(known, Reasons, run[r].start) \cup KeptBefore(known, before, run[r].start)
              ELSE Held(known)
  IN live \cup (IF Unnamed THEN Held(made) \ Held(known) ELSE {})

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
                          !.heads = Held(Heads), !.stage = Position("dump")]]
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
                  !.candidates = candidates, !.planned = @ \cup candidates, !.stage = 4, !.uncommitted = {},
                  !.before = NoReasons, !.heads = {}, !.listed = IF Optimized THEN @ ELSE {}, !.committed = IF Optimized THEN @ ELSE {},
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
                     ELSE Set(p, [at |-> IF ByRules /\ On("reasons before the recheck") THEN "read again" ELSE "look",
                                  asOf |-> now, branch |-> 1, known |-> {}, todo |-> Of(p).candidates, ids |-> Of(p).ids,
                                  before |-> NoReasons, step |-> 1])
                  /\ UNCHANGED <<now, objects, refs, fault, opened, run, lock, taken, crashes, history>>

Look == \E p \in Processes :
          LET b == process[p].branch IN
          /\ process[p].at = "look"
          /\ \E said \in Says(b) :
               Set(p, [known |-> process[p].known \cup said,
                       at |-> IF b + 1 \in Branches THEN "look" ELSE "dump commits again",
                       branch |-> IF b + 1 \in Branches THEN b + 1 ELSE 1])
          /\ UNCHANGED <<now, objects, refs, fault, opened, run, lock, taken, crashes, history>>

(* Commits that were under way at the mark have ended by then. Ticks are whole, so "at least" is "more than" here. *)
CommitsEnded(r) == On("longest commit") /\ Torn => now > run[r].preparedAt + Assumed

DumpCommitsAgain == \E p \in Processes :
                      /\ process[p].at = "dump commits again" /\ CommitsEnded(process[p].run)
                      /\ Set(p, [at |-> "dump branches again", commits |-> made])
                      /\ UNCHANGED <<now, objects, refs, fault, opened, run, lock, taken, crashes, history>>

(* Ranges that the mark has read are not read again, so they must be those that the candidates were made with. *)
DumpBranchesAgain ==
  \E p \in Processes :
    LET r == process[p].run
        live == Committed(r, process[p].commits, process[p].before)
        again == process[p].known \cup (live \ Of(p).ids)
    IN /\ process[p].at = "dump branches again"
       /\ IF On("inputs") /\ Of(p).ids # process[p].ids
          THEN GiveUp(p) /\ UNCHANGED run
          ELSE /\ Set(p, [at |-> "sweep", again |-> again \cap process[p].todo, ids |-> {}, known |-> {}, commits |-> {},
                          before |-> NoReasons])
               /\ run' = IF Optimized THEN [run EXCEPT ![r].later = live \ Of(p).ids] ELSE run
               /\ UNCHANGED lock
       /\ UNCHANGED <<now, objects, refs, fault, opened, taken, crashes, history>>

ToDelete(p) == process[p].todo \ (Of(p).receipts \cup process[p].again)
HoldsLock(p) == IF ~On("verify") THEN TRUE
            ELSE IF On("nonce") THEN lock.nonce = process[p].nonce ELSE lock.run = process[p].run
(* A lock is renewed in time, unless its machine stands still. *)
Renewed(p) == "stand still" \in Clients \/ lock.nonce # process[p].nonce \/ now < lock.since + Expiry
Believed(p) == On("valid") => now <= process[p].asOf + Valid

(* A batch is one object here: the lock is looked at right before, the receipt is written right after. *)
BeginBatch == \E p \in Processes :
                /\ process[p].at = "sweep" /\ ToDelete(p) # {} /\ Renewed(p)
                /\ IF ~HoldsLock(p) THEN process' = [process EXCEPT ![p] = Idle] /\ UNCHANGED run
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
               /\ wrong' = wrong \cup (IF lost /\ process[p].late > 0 THEN {"deleted without the lock"} ELSE {})
                                \cup (IF a \in StagedAnywhere THEN {"staged deleted"} ELSE {})
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
                           !.listed = {}, !.committed = {}, !.slices = {}, !.ids = {}, !.later = {}]]
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

Collector == Open \/ Resume \/ ListAgain \/ List \/ BeginPrepare \/ Read \/ Prepare \/ DumpCommits \/ DumpBranches \/ Mark
               \/ EndDry \/ Approve \/ Refuse \/ BeginRecheck \/ Look \/ DumpCommitsAgain \/ DumpBranchesAgain
               \/ BeginBatch \/ Copy \/ Delete \/ WriteReceipt \/ EndSweep \/ Renew \/ Crash \/ Restore \/ FreeRestored

---------------------------------------------------------------------------
Past == IF ByRules THEN {<<[holds |-> a, at |-> 0]>> \o Root : a \in Old}
                         \cup (IF Last > 1 \/ Own > Retain THEN {<<[holds |-> 0, at |-> 0], [holds |-> a, at |-> 0]>> \o Root : a \in Old} ELSE {})
        ELSE {<<[holds |-> a, at |-> 0]>> : a \in Old}

(* In the beginning the old objects are committed, staged or garbage, in every way there is. *)
Init ==
  /\ now = Begin
  /\ issued = [a \in Addresses |-> IF a \in Old \/ "upload" \in Clients THEN 0 ELSE None]
  /\ modified = [a \in Addresses |-> IF a \in Old THEN 0 ELSE None]
  /\ slice = [a \in Addresses |-> IF a \in Old \/ "upload" \in Clients THEN 0 ELSE None]
  /\ linked = [a \in Addresses |-> FALSE]
  /\ store = Old
  /\ made \in {{Root} \cup past : past \in SUBSET Past}
  /\ ByRules => \A c \in made : c = Root \/ Tail(c) \in made
  /\ head \in [Branches -> made \cup {NoCommit}]
  /\ head[1] # NoCommit
  /\ line = [b \in Branches |-> {}]
  /\ staged \in [Branches -> Old \cup {None}]
  /\ "clean start" \in Clients => \A b \in Branches : staged[b] = None
  /\ \A b \in Branches : head[b] = NoCommit => staged[b] = None
  /\ sealed = [b \in Branches |-> None]
  /\ moving = [b \in Branches |-> NoCommit]
  /\ firm = [b \in Branches |-> FALSE]
  /\ began = [b \in Branches |-> None]
  /\ tags \in IF {"tag", "untag"} \cap Clients # {} THEN SUBSET made ELSE {{}}
  /\ ruled = TRUE
  /\ log = IF ByRules THEN [c \in made |-> [i \in DOMAIN c |-> [holds |-> c[i].holds, since |-> 0, until |-> IF i = 1 THEN None ELSE 0]]]
          ELSE <<>>
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

(* The part that uncommitted data has in it, by the moment of the deletion. *)
NothingStagedDeleted == "staged deleted" \notin wrong

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
