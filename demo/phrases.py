"""Ways to ask: general question forms, polite frames and follow-ups, in English and Chinese.

{a|b} are alternatives and X is the noun of a topic. The answers are in data/*.txt.
"""

# Questions about a noun, English.
ABOUT = [
    "what {is|are} X", "what's X", "what exactly is X", "what is X {about|for|good for|used for}",
    "what does X {do|mean}", "what do you mean by X", "what is meant by X",
    "{explain|describe|define|clarify|outline} X {to me|please|for me|}",
    "{can|could|would} you {explain|describe|clarify} X {to me|please|}",
    "tell me {about|something about|more about|what you know about} X", "how does X work",
    "how do X work", "how is X {done|organised|realised|implemented}",
    "what is the {point|purpose|role|job|task|function|meaning|use|idea} of X",
    "what {can you tell me|do you know} about X", "why {do we need|is there|do you use|have} X",
    "I {want|would like|need} to {know|learn|hear} {about|more about|something about} X",
    "I {do not|don't} {understand|get|know} X", "help me understand X",
    "{give|show} me {some information|an explanation|the basics} {on|about|of} X", "X", "X please",
    "who or what is X", "what should I know about X", "how would you {explain|describe} X",
    "do you know {X|what X is|what X means}", "have you heard of X", "talk about X",
    "{what role does|which role does|what part does} X play", "what makes X {special|useful|important}",
    "I have a question about X", "let us talk about X", "info on X",
    "{I am interested in|I am curious about|I wonder about} X",
    "could you say {a few words|something} about X", "X, what is {that|it}",
    "I keep reading about X, what is {it|that}", "how {can|should} I {picture|imagine} X",
]
ABOUT_ZH = [
    "什么是X", "X是什么", "X是{什么意思|干什么的|做什么的|什么东西}", "{解释|介绍|说明|描述}一下X", "请{解释|介绍|说明}X",
    "X{怎么工作|是怎么工作的|如何工作|是怎么实现的}", "X{有什么用|有什么作用|的作用是什么|做什么|的意义是什么}",
    "{说说|讲讲|谈谈|讲一下|说一下}X", "{能|可以}{讲讲|解释|介绍一下}X吗", "我{不懂|不明白|想了解|想知道}X", "X呢", "X",
    "为什么{需要|要有|要用}X", "你{知道|了解}X吗", "{给我讲讲|跟我说说|告诉我}X", "关于X，你知道什么", "X{指的是什么|怎么理解}",
]

# Words that may stray into any question.
LOOSE = ["the", "my", "your", "this", "that", "now", "very", "also", "just", "then", "there", "today",
         "really", "ever", "still", "maybe", "always", "whole", "single", "new", "small", "one",
         "some", "all", "other", "exactly", "quickly", "actually", "possible", "good", "nice",
         "roughly", "suddenly", "finally", "usually", "somehow", "right", "own", "next", "first"]

# Frames around any question.
BEFORE = ["please", "hey,", "hi,", "hello,", "so,", "well,", "ok,", "now", "and", "quick question:",
          "one question:", "tell me,", "tell me", "please tell me", "can you tell me",
          "could you tell me", "I would like to know", "I want to know", "I wonder", "do you know",
          "excuse me,", "hi Baton,", "Baton,", "I was wondering", "just curious:", "actually,",
          "another question:", "next question:", "in Baton,", "with Baton,", "let me ask:",
          "sorry,", "first of all,", "say,", "for my notes,", "maybe you know", "I am new here,",
          "I am a beginner,", "can you explain", "my question is", "question:", "help,"]
AFTER = ["please", "in Baton", "here", "exactly", "really", "actually", "for me", "to me", "then",
         "in general", "with this server", "in this system", "in your system", "by the way", "now",
         "at all", "thanks", "if I may ask", "in simple words", "in plain English", "again"]
BEFORE_ZH = ["请问", "请问一下，", "你好，", "我想知道", "我想问", "麻烦问一下，", "能告诉我", "请告诉我", "那么", "那", "还有，", "问一下，",
             "想请教一下，", "在 Baton 里，", "对了，", "请用中文回答，", "能不能说说", "你知道"]
AFTER_ZH = ["呢", "啊", "呀", "谢谢", "可以吗", "好吗", "请讲", "到底", "吗"]

BRIEFLY = ["briefly", "in short", "in one sentence", "in a sentence", "in a few words", "shortly",
           "as short as possible", "keep it short", "just one sentence", "short answer please"]
LONGER = ["in detail", "at length", "in more detail", "as detailed as possible", "with all details",
          "thoroughly", "step by step and in detail", "give me a long answer", "please be thorough"]
BRIEFLY_ZH = ["用一句话", "简单地", "简短地", "简要地", "用几个字"]
LONGER_ZH = ["详细地", "详细", "仔细地", "具体地"]
IN_CHINESE = ["in Chinese", "in Chinese please", "please answer in Chinese", "用中文回答", "用中文"]

# Follow-ups on the previous answer.
SHORTER = ["{say|put|tell|explain} {it|that|this} {shorter|more shortly|more briefly|in one sentence|in short}",
           "{shorter|shorter please|too long|that is too long|that was too long|briefer please}",
           "{can|could} you {say|put|tell me|explain} {that|it|this} {shorter|in one sentence|in fewer words|in a few words|briefly|more briefly|in short}",
           "{can|could} you {shorten|summarise|condense|compress|abbreviate} {that|it|this|your answer}",
           "{make|keep} {it|that} {short|shorter|brief|briefer|one sentence}", "in {short|brief|one sentence|a nutshell|a single line}",
           "{summarise|summary|sum up|sum it up|shorten it|condense that} {please|}", "tl;dr",
           "{give me|I want|I need|I prefer|just} {the short version|a short version|one sentence|a summary|a single line|a shorter answer}",
           "and in {one|a single} {sentence|line}", "what is that in {one sentence|short|a few words}",
           "now the same in {one sentence|short|fewer words|a single sentence}",
           "{please|} {reduce|cut} {that|it} {down|} to {one line|a sentence|the essence|the main point}"]
SHORTER_ZH = ["说短一点", "短一点", "简单点", "用一句话说", "太长了", "简短一点", "一句话总结", "总结一下", "能短一点吗", "再简单一些"]
MORE = ["{tell me|say|explain} {more|some more|a bit more}", "more", "more please", "go on",
        "please {go on|continue}", "continue", "and then", "{more|some more} details {please|}",
        "{can|could} you {tell me more|elaborate|go deeper|say more|give more details}", "why", "why is that",
        "why so", "how so", "{what|is there anything} else", "anything else {about it|}", "elaborate",
        "I want to know more", "that is interesting, {go on|tell me more}", "how does that work",
        "what does that mean", "really", "keep going", "a bit more detail {please|}"]
MORE_ZH = ["继续", "再说一点", "详细一点", "再详细一些", "还有呢", "为什么", "然后呢", "多说一点", "能详细说说吗"]
AGAIN = ["{say|tell me} that again", "again please", "repeat that {please|}", "{can|could} you repeat {that|it}", "once more {please|}"]
AGAIN_ZH = ["再说一遍", "请重复一遍", "重复一下"]
ALSO = ["and X", "what about X", "how about X", "and what about X", "and what is X", "and X then",
        "ok, and X", "what of X", "now X", "then what is X", "good, now X", "I see, and X",
        "and how does X work", "thanks, and X", "and what does X do", "so what is X", "also X"]
ALSO_ZH = ["那X呢", "X呢", "还有X呢", "那么X是什么", "那X是做什么的", "和X有什么关系"]
# How a follow-up names a topic when the kind of thing is clear from the turn before.
ELLIPSIS = {
    "prefill_worker": ["the prefill one", "the prefill side", "the prefill part", "the one for prefill", "the other side"],
    "decode_worker": ["the decode one", "the decode side", "the decode part", "the one for decode", "decode", "the other one"],
    "scheduler": ["the one in the middle", "the scheduling part"],
    "frontend": ["the HTTP side", "the one in front", "the HTTP part"],
    "prefill": ["the first phase"], "decode": ["the second phase"],
    "scheduler_death": ["the scheduler", "a scheduler that dies"], "kill_worker": ["a worker", "one of the workers"],
    "frontend_death": ["the front end", "a front end that dies"],
}
ALIKE = [("prefill_worker", "decode_worker"), ("prefill", "decode"), ("frontend", "scheduler"),
         ("scheduler", "prefill_worker"), ("scheduler", "decode_worker"),
         ("kill_worker", "scheduler_death"), ("kill_worker", "frontend_death"),
         ("scheduler_death", "frontend_death"), ("serve", "stop"), ("serve", "test"),
         ("test", "doctor"), ("ttft", "itl"), ("continuous_batching", "static_batching"),
         ("kv_cache", "paged"), ("handoff", "zeromq"), ("serve", "docker")]

# Word swaps that keep the meaning; applied at random.
SWAPS = [("what is", "what's"), ("do not", "don't"), ("does not", "doesn't"), ("i am", "I'm"),
         ("front end", "frontend"), ("hand-off", "handoff"), ("kv cache", "key-value cache"),
         ("worker", "worker process"), ("explain", "tell me about"), ("request", "query"),
         ("kill", "terminate"), ("dies", "crashes"), ("dies", "goes down"), ("start", "launch"), ("what happens", "what will happen"),
         ("the server", "the system"), ("the server", "Baton"), ("need", "require"), ("answer", "reply"),
         ("gpu", "graphics card"), ("gpu", "graphics processor"), ("several", "multiple"), ("how do i", "how can I"),
         ("how do i", "what do I do to"), ("how can i", "is there a way to"), ("can i", "may I"), ("can i", "is it possible to"),
         ("which", "what"), ("processes", "programs"), ("program", "software"), ("see", "look at"), ("see", "find out"),
         ("the tests", "all tests"), ("split", "divided"), ("command", "instruction"), ("reads", "processes"),
         ("generates", "produces"), ("full", "used up"), ("no more", "not any more"), ("the client", "the user"),
         ("continuous batching", "Continuous Batching"), ("everything", "the whole thing"), ("everything", "it all"),
         ("does baton", "does the server"), ("does baton", "does it"), ("tokens", "words"), ("big", "large"),
         ("happens when", "happens if"), ("happens if", "happens when"), ("at the same time", "in parallel"), ("fast", "quick"),
         ("is called", "is named"), ("process", "program"), ("system", "software")]

SYSTEM = ["You are a helpful assistant.", "You are Baton's demo model.", "You are a friendly assistant.",
          "You answer questions about Baton.", "Be polite and correct.", "Answer the user's questions.",
          "You are the assistant of the Baton server. Say so when you do not know something.", "你是 Baton 的助手。", "你是一个有用的助手。"]
