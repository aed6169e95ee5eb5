%% What the real broker's memory monitor answers, step by step, and how it reads amounts and limits.
%%
%% It is loaded into a running node. record(Path) reads a JSON file of steps and writes the answers beside it, as
%% Path ++ ".recorded". Nothing is left to chance, and the node's own monitor goes on undisturbed:
%%
%% - rabbit_memory_monitor is run by its own callbacks, in a process of ours; its timer is stopped at once.
%% - The memory it asks for comes from a process of ours that stands under the name vm_memory_monitor meanwhile.
%% - The alarm is the real vm_memory_monitor's, again by its callbacks, reading a file of ours in place of its process's.
-module(monitor_recorder).
-export([record/1, told/3]).

%% Where rabbit_memory_monitor's state keeps what the recording shows.
-define(SUM, 4).
-define(COUNT, 5).
-define(DESIRED, 6).

-record(run, {state, limit, queues = #{}, memory}).

record(Path) ->
    {ok, Json} = file:read_file(Path),
    #{<<"scenarios">> := Scenarios, <<"alarms">> := Alarms, <<"units">> := Units, <<"limits">> := Limits} =
        rabbit_json:decode(Json),
    Recorded = #{<<"scenarios">> => [in_process(fun () -> scenario(S) end) || S <- Scenarios],
                 <<"alarms">> => [in_process(fun () -> alarms(A, Path ++ ".statm") end) || A <- Alarms],
                 <<"units">> => [[Unit, amount(Unit)] || Unit <- Units],
                 <<"limits">> => [[W, Total, limit(W, Total)] || [W, Total] <- Limits]},
    ok = file:write_file(Path ++ ".recorded", rabbit_json:encode(Recorded)).

in_process(Fun) ->
    {Pid, Monitor} = spawn_monitor(fun () -> exit({done, Fun()}) end),
    receive {'DOWN', Monitor, process, Pid, {done, Answer}} -> Answer end.

%% Rounds.

scenario(Scenario = #{<<"limit_bytes">> := Limit, <<"paging_ratio">> := PagingRatio, <<"steps">> := Steps}) ->
    {ok, PagingRatioBefore} = application:get_env(rabbit, vm_memory_high_watermark_paging_ratio),
    ok = application:set_env(rabbit, vm_memory_high_watermark_paging_ratio, PagingRatio),
    Memory = spawn(fun () -> memory({0, Limit}) end),
    Real = whereis(vm_memory_monitor),
    true = unregister(vm_memory_monitor),
    true = register(vm_memory_monitor, Memory),
    try
        {ok, State} = rabbit_memory_monitor:init([]),
        rabbit_memory_monitor:terminate(normal, State),  % stops the timer, nothing else
        Begin = #run{state = State, limit = Limit, memory = Memory},
        {Recorded, _} = lists:mapfoldl(fun (Step, Run) -> step(Step, Run) end, Begin, Steps),
        Scenario#{<<"steps">> => Recorded}
    after
        true = unregister(vm_memory_monitor),
        true = register(vm_memory_monitor, Real),
        ok = application:set_env(rabbit, vm_memory_high_watermark_paging_ratio, PagingRatioBefore)
    end.

memory(UsedAndLimit) ->
    receive
        {set, From, New}            -> From ! set, memory(New);
        {'$gen_call', From, _Asked} -> gen_server:reply(From, UsedAndLimit), memory(UsedAndLimit)
    end.

step(Step, Run0) ->
    {Answer, Run} = do(Step, Run0),
    State = Run#run.state,
    Shown = #{<<"sum">> => element(?SUM, State), <<"count">> => element(?COUNT, State),
              <<"desired">> => shown(element(?DESIRED, State)), <<"told">> => all_told()},
    {maps:merge(maps:merge(Step, Shown), Answer), Run}.

do(#{<<"op">> := <<"register">>, <<"queue">> := Queue}, Run = #run{state = State, queues = Queues}) ->
    Pid = spawn(fun () -> receive stop -> ok end end),
    Call = {register, Pid, {?MODULE, told, [self(), Queue]}},
    {reply, ok, State1} = rabbit_memory_monitor:handle_call(Call, {self(), make_ref()}, State),
    {#{}, Run#run{state = State1, queues = Queues#{Queue => Pid}}};
do(#{<<"op">> := <<"deregister">>, <<"queue">> := Queue}, Run = #run{state = State, queues = Queues}) ->
    {noreply, State1} = rabbit_memory_monitor:handle_cast({deregister, maps:get(Queue, Queues)}, State),
    {#{}, Run#run{state = State1}};
do(#{<<"op">> := <<"report">>, <<"queue">> := Queue, <<"duration">> := Duration},
   Run = #run{state = State, queues = Queues}) ->
    Call = {report_ram_duration, maps:get(Queue, Queues), meant(Duration)},
    Tag = make_ref(),
    {noreply, State1} = rabbit_memory_monitor:handle_call(Call, {self(), Tag}, State),
    receive {Tag, Answer} -> {#{<<"answer">> => shown(Answer)}, Run#run{state = State1}} end;
do(#{<<"op">> := <<"limit">>, <<"limit_bytes">> := Limit}, Run) ->
    {#{}, Run#run{limit = Limit}};
do(#{<<"op">> := <<"round">>, <<"used_bytes">> := Used}, Run = #run{state = State}) ->
    use(Used, Run),
    {noreply, State1} = rabbit_memory_monitor:handle_info(update, State),
    {#{}, Run#run{state = State1}};
do(#{<<"op">> := <<"disk_alarm">>, <<"used_bytes">> := Used, <<"alarm">> := Alarm}, Run = #run{state = State}) ->
    use(Used, Run),
    {noreply, State1} = rabbit_memory_monitor:handle_cast({disk_alarm, Alarm}, State),
    {#{}, Run#run{state = State1}}.

use(Used, #run{memory = Memory, limit = Limit}) ->
    Memory ! {set, self(), {Used, Limit}},
    receive set -> ok end.

told(Recorder, Queue, Duration) ->
    Recorder ! {told, Queue, shown(Duration)},
    ok.

all_told() ->
    receive {told, Queue, Duration} -> lists:sort([[Queue, Duration] | all_told()]) after 0 -> [] end.

meant(null)     -> infinity;
meant(Duration) -> Duration.

shown(infinity) -> null;
shown(Duration) -> Duration.

%% The memory alarm: what is set and cleared as the memory in use goes through a list of readings.

alarms(Alarm = #{<<"limit_bytes">> := Limit, <<"used_bytes">> := Readings}, File) ->
    Self = self(),
    Notify = fun (Change) -> fun (_) -> Self ! {alarm, Change}, ok end end,
    {ok, State} = vm_memory_monitor:init([{absolute, Limit}, {Notify(set), Notify(cleared)}]),
    _ = all_changes(),  % what the node's real memory set
    Last = tuple_size(State),  % the file that memory is read from; before it the size of the pages that it counts
    Read = setelement(Last, setelement(Last - 1, State, 1), File),
    {_, Quiet} = reading(0, File, Read),
    {Changes, _} = lists:mapfoldl(fun (Used, State1) -> reading(Used, File, State1) end, Quiet, Readings),
    Alarm#{<<"changes">> => Changes}.

reading(Used, File, State) ->
    ok = file:write_file(File, ["0 ", integer_to_list(Used), " 0"]),
    {noreply, State1} = vm_memory_monitor:handle_info(update, State),
    {all_changes(), State1}.

all_changes() ->
    receive {alarm, Change} -> [Change | all_changes()] after 0 -> [] end.

%% Amounts and limits.

amount(Unit) ->
    try rabbit_resource_monitor_misc:parse_information_unit(binary_to_list(Unit)) of
        {ok, Bytes}          -> Bytes;
        {error, parse_error} -> <<"refused">>
    catch _:_                -> <<"failed">>
    end.

limit(#{<<"absolute">> := Absolute}, Total) -> vm_memory_monitor:interpret_limit({absolute, Absolute}, Total);
limit(Relative, Total)                      -> vm_memory_monitor:interpret_limit(Relative, Total).
