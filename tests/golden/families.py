"""Small random models of families beside those of make_logits.py, each with what is its own: name -> (model
type, sizes, dtype of the file, whether config.json is written as transformers 4 did). New ones go to the end."""
import torch

BF16 = torch.bfloat16
YARN = {"rope_type": "yarn", "rope_theta": 150.0, "factor": 4.0, "original_max_position_embeddings": 40,
        "beta_fast": 8.0, "beta_slow": 1.0, "truncate": False}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


def plain(theta=10000.0, **more):
    return {"rope_type": "default", "rope_theta": theta} | more


def longrope(pairs, original):
    return {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": original,
            "short_factor": [1.0 + 0.1 * i for i in range(pairs)],
            "long_factor": [1.0 + 0.7 * i for i in range(pairs)]}


def sizes(hidden, layers, heads, kv_heads, intermediate, vocab, **more):
    return dict(hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
                num_key_value_heads=kv_heads, intermediate_size=intermediate, vocab_size=vocab) | more


VISION = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=28,
              patch_size=14)
GEMMA3 = sizes(40, 3, 4, 2, 50, 70, head_dim=12, sliding_window=20, query_pre_attn_scalar=10,
               layer_types=["sliding_attention", "full_attention", "sliding_attention"],
               rope_parameters={"sliding_attention": plain(100.0),
                                "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 8.0}})
QWEN_VISION = dict(depth=1, hidden_size=16, num_heads=2, intermediate_size=16, patch_size=14)
GLM_IDS = dict(image_token_id=69, video_token_id=68, image_start_token_id=67, image_end_token_id=66,
               video_start_token_id=65, video_end_token_id=64)
QWEN_IDS = dict(image_token_id=69, video_token_id=68, vision_start_token_id=67, vision_end_token_id=66)
MROPE_TEXT = sizes(40, 2, 4, 2, 50, 70, max_position_embeddings=512, bos_token_id=1, eos_token_id=2,
                   rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 2, 2]})
QWEN3_VL = sizes(40, 2, 4, 2, 50, 70, head_dim=12, max_position_embeddings=512, bos_token_id=1, eos_token_id=2,
                 rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 2, 2],
                                  "mrope_interleaved": True})

MISTRAL4 = dict(text_config=dict(
    model_type="mistral4", tie_word_embeddings=False, bos_token_id=1, eos_token_id=2, rms_norm_eps=1e-5,
    q_lora_rank=24, kv_lora_rank=18, qk_nope_head_dim=10, qk_rope_head_dim=6, v_head_dim=14, n_routed_experts=8,
    num_experts_per_tok=3, moe_intermediate_size=20, n_shared_experts=1, first_k_dense_replace=1, n_group=4,
    topk_group=2, routed_scaling_factor=1.3, rope_parameters=YARN | {
        "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.4}, **sizes(40, 3, 4, 4, 48, 70)),
    vision_config=dict(model_type="pixtral", head_dim=8) | VISION, image_token_index=69)

FAMILIES = {
    "llama_biases": ("llama", sizes(36, 2, 3, 1, 50, 61, attention_bias=True, mlp_bias=True,
                                    tie_word_embeddings=False), BF16, False),
    "ministral": ("ministral", sizes(40, 3, 4, 2, 44, 66, head_dim=12, sliding_window=30,
                                     layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
                  BF16, False),
    "qwen2_moe": ("qwen2_moe", sizes(32, 3, 4, 2, 40, 60, num_experts=6, num_experts_per_tok=2,
                                     moe_intermediate_size=20, shared_expert_intermediate_size=36,
                                     decoder_sparse_step=2), BF16, False),
    "granite": ("granite", sizes(36, 2, 6, 3, 50, 64, embedding_multiplier=6.0, attention_multiplier=0.3,
                                 residual_multiplier=0.4, logits_scaling=0.5, tie_word_embeddings=True), BF16, False),
    "smollm3": ("smollm3", sizes(40, 5, 4, 2, 50, 62, no_rope_layers=[1, 1, 0, 1, 0],
                                 rope_parameters=plain(20000.0)), BF16, False),
    "phi3": ("phi3", sizes(48, 2, 4, 2, 50, 70, sliding_window=40,
                           max_position_embeddings=512, rope_parameters=plain()), BF16, False),
    # 1,024 positions are served, so that the long list holds; 150 tokens are more than 64.
    "phi3_long": ("phi3", sizes(48, 2, 3, 1, 50, 70, max_position_embeddings=1024,
                                original_max_position_embeddings=64,
                                rope_parameters=longrope(6, 64) | {"partial_rotary_factor": 0.75}), BF16, False),
    "phi3_short": ("phi3", sizes(48, 2, 3, 3, 50, 70, max_position_embeddings=512,
                                 original_max_position_embeddings=512,
                                 rope_parameters=longrope(8, 512)), BF16, False),
    "olmo2": ("olmo2", sizes(36, 2, 6, 2, 50, 61, rope_parameters=plain(500000.0)), BF16, False),
    "olmo3": ("olmo3", sizes(40, 4, 4, 2, 50, 61, sliding_window=24,
                             rope_parameters={"sliding_attention": plain(500.0),
                                              "full_attention": {k: v for k, v in YARN.items() if k != "truncate"}}),
              BF16, False),
    "cohere2": ("cohere2", sizes(48, 4, 4, 2, 50, 66, sliding_window=30, logit_scale=0.3, attention_bias=True),
                BF16, False),
    "starcoder2": ("starcoder2", sizes(36, 2, 3, 1, 70, 66, sliding_window=50), BF16, False),
    "glm": ("glm", sizes(40, 2, 4, 2, 50, 66, head_dim=12,
                         rope_parameters=plain(partial_rotary_factor=0.5)), BF16, False),
    "glm4": ("glm4", sizes(40, 2, 4, 2, 50, 66, head_dim=16, attention_bias=True,
                           rope_parameters=plain(partial_rotary_factor=0.5)), BF16, False),
    "exaone4": ("exaone4", sizes(40, 4, 4, 2, 50, 66, sliding_window=25, rope_parameters=LLAMA3), BF16, False),
    "exaone4_full": ("exaone4", sizes(40, 2, 4, 2, 50, 66, sliding_window=None, rope_parameters=plain(),
                                      layer_types=["full_attention"] * 2), BF16, False),
    "gemma2": ("gemma2", sizes(40, 3, 4, 2, 50, 70, head_dim=12, sliding_window=20, query_pre_attn_scalar=20,
                               attn_logit_softcapping=3.0, final_logit_softcapping=8.0), BF16, False),
    "gemma3": ("gemma3_text", GEMMA3, BF16, False),
    "gemma3_pictures": ("gemma3", dict(text_config=GEMMA3, vision_config=VISION, mm_tokens_per_image=4,
                                       image_token_index=69, boi_token_index=67, eoi_token_index=68), BF16, False),
    "mistral3_pictures": ("mistral3", dict(text_config=dict(model_type="mistral", sliding_window=None,
                                                            tie_word_embeddings=False, bos_token_id=1, eos_token_id=2,
                                                            max_position_embeddings=512,
                                                            **sizes(40, 2, 4, 2, 50, 70, head_dim=12)),
                                           vision_config=dict(model_type="pixtral", head_dim=8) | VISION,
                                           image_token_index=69), BF16, False),
    "glm4_moe": ("glm4_moe", sizes(32, 3, 4, 2, 40, 60, head_dim=16, n_routed_experts=8, num_experts_per_tok=3,
                                   moe_intermediate_size=20, n_shared_experts=2, first_k_dense_replace=1, n_group=4,
                                   topk_group=2, routed_scaling_factor=1.7, use_qk_norm=True, attention_bias=True,
                                   rope_parameters=plain(partial_rotary_factor=0.5)), BF16, False),
    "gpt_oss": ("gpt_oss", sizes(40, 3, 4, 2, 36, 66, head_dim=16, sliding_window=20, num_local_experts=6,
                                 num_experts_per_tok=2, rope_parameters=YARN, max_position_embeddings=160),
                BF16, False),
    "gpt_oss_mxfp4": ("gpt_oss", sizes(64, 1, 4, 2, 32, 66, head_dim=16, sliding_window=20, num_local_experts=4,
                                       num_experts_per_tok=2, rope_parameters=YARN, max_position_embeddings=160),
                      BF16, False),
    "deepseek_v2": ("deepseek_v2", sizes(40, 2, 4, 4, 48, 66, q_lora_rank=None, kv_lora_rank=20, qk_nope_head_dim=12,
                                         qk_rope_head_dim=8, v_head_dim=10, n_routed_experts=8, num_experts_per_tok=3,
                                         moe_intermediate_size=20, n_shared_experts=2, first_k_dense_replace=1,
                                         topk_method="group_limited_greedy", n_group=4, topk_group=2,
                                         routed_scaling_factor=1.5, rope_parameters=plain()), BF16, False),
    "deepseek_v3": ("deepseek_v3", sizes(40, 3, 4, 4, 48, 66, q_lora_rank=24, kv_lora_rank=18, qk_nope_head_dim=10,
                                         qk_rope_head_dim=6, v_head_dim=14, n_routed_experts=8, num_experts_per_tok=3,
                                         moe_intermediate_size=20, n_shared_experts=1, first_k_dense_replace=1,
                                         n_group=4, topk_group=2, routed_scaling_factor=2.5,
                                         rope_parameters=YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}), BF16, False),
    "deepseek_v2_lite": ("deepseek_v2", sizes(36, 3, 3, 3, 44, 62, q_lora_rank=None, kv_lora_rank=22,
                                              qk_nope_head_dim=10, qk_rope_head_dim=4, v_head_dim=11,
                                              n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=20,
                                              n_shared_experts=1, first_k_dense_replace=1, topk_method="greedy",
                                              n_group=1, topk_group=1, routed_scaling_factor=1.0,
                                              rope_parameters={k: v for k, v in YARN.items() if k != "truncate"} |
                                              {"mscale": 0.707, "mscale_all_dim": 0.707}), BF16, True),
    # Its folders have a name of their own for what DeepSeek V3 computes; the ramp of its angles has no width.
    "kimi_k2": ("deepseek_v3", sizes(44, 2, 3, 3, 40, 60, q_lora_rank=20, kv_lora_rank=24, qk_nope_head_dim=11,
                                     qk_rope_head_dim=8, v_head_dim=9, n_routed_experts=12, num_experts_per_tok=4,
                                     moe_intermediate_size=16, n_shared_experts=1, first_k_dense_replace=1,
                                     n_group=1, topk_group=1, routed_scaling_factor=2.827,
                                     rope_parameters={"rope_type": "yarn", "rope_theta": 50000.0, "factor": 8.0,
                                                      "original_max_position_embeddings": 64, "beta_fast": 1.0,
                                                      "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}),
                BF16, True),
    "seed_oss": ("seed_oss", sizes(40, 2, 4, 2, 50, 66, head_dim=12, attention_bias=True,
                                   rope_parameters=plain(50000.0)), BF16, False),
    "ernie4_5": ("ernie4_5", sizes(36, 2, 3, 1, 50, 61, head_dim=12, use_bias=True,
                                   rope_parameters=plain(5000.0)), BF16, False),
    "olmoe": ("olmoe", sizes(32, 2, 4, 2, 20, 60, num_experts=6, num_experts_per_tok=2,
                             rope_parameters=plain()), BF16, False),
    "minimax_m2": ("minimax_m2", sizes(40, 2, 4, 2, 20, 66, head_dim=12, num_local_experts=6, num_experts_per_tok=3,
                                       max_position_embeddings=512,
                                       rope_parameters=plain(50000.0, partial_rotary_factor=0.5)), BF16, False),
    "solar_open": ("solar_open", sizes(32, 2, 4, 2, 40, 60, head_dim=16, n_routed_experts=8, num_experts_per_tok=3,
                                       moe_intermediate_size=20, n_shared_experts=1, routed_scaling_factor=1.5,
                                       rope_parameters=plain(50000.0)), BF16, False),
    "gemma": ("gemma", sizes(40, 2, 4, 2, 50, 70, head_dim=12, rope_parameters=plain()), BF16, False),
    "cohere": ("cohere", sizes(48, 2, 4, 2, 50, 66, logit_scale=0.3, rope_parameters=plain()), BF16, False),
    "glm4_moe_lite": ("glm4_moe_lite", sizes(40, 3, 4, 4, 48, 66, q_lora_rank=24, kv_lora_rank=18,
                                             qk_nope_head_dim=10, qk_rope_head_dim=6, v_head_dim=14,
                                             n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=20,
                                             n_shared_experts=1, routed_scaling_factor=1.8,
                                             rope_parameters=plain(10000.0)), BF16, False),
    "llava": ("llava", dict(text_config=dict(model_type="llama", bos_token_id=1, eos_token_id=2,
                                             **sizes(40, 2, 4, 2, 50, 70)),
                            vision_config=dict(model_type="clip_vision_model", projection_dim=16) | VISION,
                            image_token_index=69), BF16, False),
    "llava_onevision": ("llava_onevision", dict(text_config=dict(model_type="qwen2", **sizes(40, 2, 4, 2, 50, 70)),
                                                vision_config=dict(model_type="siglip_vision_model") | VISION,
                                                image_token_index=69, video_token_index=68), BF16, False),
    "internvl": ("internvl", dict(text_config=dict(model_type="qwen3", **sizes(40, 2, 4, 2, 50, 70, head_dim=12)),
                                  vision_config=VISION | dict(image_size=[28, 28], patch_size=[14, 14]),
                                  image_token_id=69), BF16, False),
    "smolvlm": ("smolvlm", dict(text_config=dict(model_type="llama", bos_token_id=1, eos_token_id=2, pad_token_id=0,
                                                 **sizes(40, 2, 4, 2, 50, 70)),
                                vision_config=VISION, image_token_id=69, pad_token_id=0, scale_factor=1),
                BF16, False),
    "qwen2_vl": ("qwen2_vl", dict(text_config=MROPE_TEXT, vision_config=QWEN_VISION | dict(embed_dim=16), **QWEN_IDS),
                 BF16, False),
    "qwen2_5_vl": ("qwen2_5_vl", dict(text_config=MROPE_TEXT,
                                      vision_config=QWEN_VISION | dict(out_hidden_size=40), **QWEN_IDS),
                   BF16, False),
    "qwen3_vl": ("qwen3_vl", dict(text_config=QWEN3_VL | {"intermediate_size": 50},
                                  vision_config=QWEN_VISION | dict(out_hidden_size=40, deepstack_visual_indexes=[0]),
                                  **QWEN_IDS), BF16, False),
    "qwen3_vl_moe": ("qwen3_vl_moe", dict(text_config=QWEN3_VL | dict(num_experts=6, num_experts_per_tok=2,
                                                                      moe_intermediate_size=24, decoder_sparse_step=1),
                                          vision_config=QWEN_VISION | dict(out_hidden_size=40,
                                                                           deepstack_visual_indexes=[0]),
                                          **QWEN_IDS), BF16, False),
    "glm4v": ("glm4v", dict(text_config=sizes(48, 2, 4, 2, 50, 70, pad_token_id=0, max_position_embeddings=512,
                                              rope_parameters=plain(partial_rotary_factor=0.5,
                                                                    mrope_section=[1, 1, 1])),
                            vision_config=dict(depth=1, hidden_size=16, num_heads=2, intermediate_size=16,
                                               out_hidden_size=48, image_size=28, patch_size=14),
                            **GLM_IDS), BF16, False),
    # The same as folders of transformers 4 store its experts: [count, in, out].
    "qwen3_vl_moe_turned": ("qwen3_vl_moe", dict(text_config=QWEN3_VL | dict(
        num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24, decoder_sparse_step=1),
        vision_config=QWEN_VISION | dict(out_hidden_size=40, deepstack_visual_indexes=[0]), **QWEN_IDS), BF16, False),
    "glm4v_moe": ("glm4v_moe", dict(text_config=sizes(
        32, 3, 4, 2, 40, 70, head_dim=16, n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=20,
        n_shared_experts=1, first_k_dense_replace=1, n_group=4, topk_group=2, routed_scaling_factor=1.7,
        attention_bias=True, pad_token_id=0, rope_parameters=plain(partial_rotary_factor=0.5, mrope_section=[1, 1, 2])),
        vision_config=dict(depth=1, hidden_size=16, num_heads=2, intermediate_size=16, out_hidden_size=32,
                           image_size=28, patch_size=14), **GLM_IDS), BF16, False),
    # Queries grow every 40 positions.
    "ministral3": ("ministral3", sizes(40, 2, 4, 2, 50, 70, head_dim=12, rope_parameters=YARN | {
        "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.4}), BF16, False),
    # transformers has its text half within a folder that sees pictures alone.
    "mistral4": ("mistral3", MISTRAL4, BF16, False),
    # The first's experts one by one.
    "mistral4_each": ("mistral3", MISTRAL4, BF16, False),
    "vaultgemma": ("vaultgemma", sizes(40, 3, 4, 2, 50, 70, head_dim=12, sliding_window=20, query_pre_attn_scalar=20,
                                       attn_logit_softcapping=3.0, final_logit_softcapping=8.0), BF16, False),
    "youtu": ("youtu", sizes(40, 2, 4, 4, 48, 66, q_lora_rank=24, kv_lora_rank=18, qk_nope_head_dim=10,
                             qk_rope_head_dim=6, v_head_dim=14, rope_parameters=plain(500.0)), BF16, False),
    "dots1": ("dots1", sizes(32, 3, 4, 2, 40, 60, head_dim=12, n_routed_experts=8, num_experts_per_tok=3,
                             moe_intermediate_size=20, n_shared_experts=2, first_k_dense_replace=1, n_group=4,
                             topk_group=2, routed_scaling_factor=1.7, norm_topk_prob=True, sliding_window=30,
                             max_window_layers=1, scoring_func="noaux_tc",
                             rope_parameters=plain(500.0)), BF16, False),
    "ernie4_5_moe": ("ernie4_5_moe", sizes(32, 5, 4, 2, 40, 60, moe_num_experts=8, moe_k=3, moe_intermediate_size=20,
                                           moe_num_shared_experts=2, moe_layer_start_index=1, moe_layer_end_index=3,
                                           moe_layer_interval=2, use_bias=False, rope_parameters=plain(500.0)),
                     BF16, False),
    "granitemoe": ("granitemoe", sizes(40, 2, 4, 2, 20, 60, num_local_experts=6, num_experts_per_tok=3, head_dim=10,
                                       embedding_multiplier=3.0, attention_multiplier=0.3, residual_multiplier=0.4,
                                       logits_scaling=0.5, tie_word_embeddings=True, rope_parameters=plain(500.0)),
                   BF16, False),
    "granitemoeshared": ("granitemoeshared", sizes(
        40, 2, 4, 2, 20, 60, num_local_experts=5, num_experts_per_tok=2, shared_intermediate_size=26,
        embedding_multiplier=3.0, attention_multiplier=0.3, residual_multiplier=0.4, logits_scaling=0.5,
        rope_parameters=plain(500.0)), BF16, False),
    # Granite 4 without recurrent layers.
    "granite4": ("granitemoehybrid", sizes(
        40, 2, 4, 2, 44, 60, num_local_experts=0, shared_intermediate_size=44, position_embedding_type="rope",
        layer_types=["full_attention", "full_attention"], embedding_multiplier=3.0, attention_multiplier=0.3,
        residual_multiplier=0.4, logits_scaling=0.5, rope_parameters=plain(500.0), mamba_n_heads=8), BF16, False),
    "hyperclovax": ("hyperclovax", sizes(40, 2, 4, 2, 50, 60, embedding_multiplier=3.0, residual_multiplier=0.4,
                                         logits_scaling=0.5, head_dim=12, rope_parameters=plain(500.0)), BF16, False),
    "exaone_moe": ("exaone_moe", sizes(
        32, 4, 4, 2, 40, 60, head_dim=12, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=20,
        num_shared_experts=2, first_k_dense_replace=1, n_group=4, topk_group=2, routed_scaling_factor=1.7,
        sliding_window=20, sliding_window_pattern=4, rope_parameters=plain(500.0)), BF16, False),
    "hy_v3": ("hy_v3", sizes(32, 3, 4, 2, 40, 60, head_dim=12, num_experts=8, num_experts_per_tok=3,
                             moe_intermediate_size=20, num_shared_experts=2, router_scaling_factor=1.7,
                             rope_parameters=plain(500.0)), BF16, False),
    "cwm": ("cwm", sizes(40, 3, 4, 2, 50, 60, head_dim=12, sliding_window=20, rope_parameters=LLAMA3,
                         layer_types=["full_attention", "sliding_attention", "sliding_attention"]), BF16, False),
    "mellum": ("mellum", sizes(
        32, 3, 4, 2, 40, 60, head_dim=12, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=20,
        sliding_window=20, layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        mlp_layer_types=["dense", "sparse", "sparse"],
        rope_parameters={"full_attention": YARN | {"truncate": True}, "sliding_attention": plain(100.0)}),
               BF16, False),
    "qwen2_windows": ("qwen2", sizes(40, 3, 4, 2, 50, 61, use_sliding_window=True, sliding_window=20,
                                     max_window_layers=1, rope_parameters=plain(500.0)), BF16, False),
    "qwen3_moe_window": ("qwen3_moe", sizes(
        32, 2, 4, 2, 40, 60, head_dim=12, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=20,
        use_sliding_window=True, sliding_window=20, rope_parameters=plain(500.0)), BF16, False),
}
# What config.json calls them, where transformers calls it otherwise.
OWN_TYPES = {"kimi_k2": "kimi_k2"}
